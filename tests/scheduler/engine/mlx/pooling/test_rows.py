"""Rows of an embedder: when they come and go, what they hold, and what of them fails alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.pooling.pooled_row import groups_of
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import Cancel, StepOutput, Submit
from scheduler.shared.pooling import PooledTokens, Pooler
from tests.contracts.check_backend import CHUNK, MakeBackend, check_it_has_the_members_of_a_back_end
from tests.contracts.check_vectors import VECTOR_CHECKS
from tests.contracts.journal import kv_bytes, prompt_of, request
from tests.fakes.embedder_folder import write_embedder
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.pooling.embedding_engine import EmbeddingEngine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("models") / "embedder")


@pytest.mark.parametrize("check", [check_it_has_the_members_of_a_back_end, *VECTOR_CHECKS])
@pytest.mark.parametrize("tokens", ["last", "mean"])
def test_contract(check: Callable[[MakeBackend], None], tokens: PooledTokens, folder: Path) -> None:
    """Whatever the contract of back ends says of vectors."""
    pooler = Pooler(tokens)
    check(lambda: EmbeddingEngine(folder, pooler, prefill_chunk_tokens=CHUNK).backend)


def submit(request_id: int, tokens: int, **fields: Any) -> Submit:
    asked = request(request_id, prompt_of(tokens, request_id), 1)
    return msgspec.structs.replace(asked, dimensions=0, **fields)


def outputs(frames: list[Any]) -> list[StepOutput]:
    return [frame for frame in frames if isinstance(frame, StepOutput)]


def test_short_texts_pass_long_ones_which_go_on(folder: Path) -> None:
    """A long text is read in chunks, with its progress; texts that fit into a step end in it. Nothing is held
    afterwards."""
    engine = EmbeddingEngine(folder, prefill_chunk_tokens=64)
    frames = outputs(engine.loop.iterate([submit(1, 1000)]))
    held = kv_bytes(engine.backend)
    assert held > 0
    frames += outputs(engine.loop.iterate([submit(2, 5)]))
    assert [end.request_id for frame in frames for end in frame.retired] == [2]
    while not engine.loop.idle:
        frames += outputs(engine.loop.iterate(()))
    done = [out.done for frame in frames for out in frame.prefills if out.request_id == 1]
    assert done == sorted(done)
    assert (len(done) > 10, done[-1]) == (True, 1000)
    assert frames[-1].counters.prefilled_tokens == 1005
    assert kv_bytes(engine.backend) == 0


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_text_is_gone_at_once(steps: int, folder: Path) -> None:
    """Waiting, or in the middle of its chunks; others have the vectors that they have without it."""
    engine = EmbeddingEngine(folder, prefill_chunk_tokens=64)
    (expected,) = engine.vectors([prompt_of(90, 2)])
    engine.loop.iterate([submit(11, 500), submit(12, 400)])
    for _ in range(steps):
        engine.loop.iterate(())
    frames = outputs(engine.loop.iterate([Cancel(11), Cancel(12)]))
    assert {end.reason for frame in frames for end in frame.retired} == {"cancelled"}
    assert kv_bytes(engine.backend) == 0
    asked = submit(13, 1, prompt=request(13, prompt_of(90, 2)).prompt)
    frames = outputs(engine.loop.iterate([asked]))
    while not engine.loop.idle:
        frames += outputs(engine.loop.iterate(()))
    (end,) = [end for frame in frames for end in frame.retired]
    np.testing.assert_allclose(np.frombuffer(end.vector, "<f4"), expected, atol=1e-6)


@given(lengths=st.lists(st.integers(1, 64), max_size=40), most=st.integers(1, 256))
@settings(deadline=None)
def test_padding_is_bounded(lengths: list[int], most: int) -> None:
    """Every row is in one group; a group has at most `most` tokens with its padding, or is one row."""
    groups = groups_of(lengths, most)
    assert sorted(at for group in groups for at in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[at] for at in group) <= most


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dimensions": None}, "writes no tokens"),
        ({"dimensions": -1}, "dimensions must be"),
        ({"prompt": request(1, []).prompt}, "empty"),
        ({"prompt": request(1, [512]).prompt}, "outside the vocabulary of 512"),
    ],
)
def test_what_it_cannot_read_is_refused(fields: dict[str, Any], words: str, folder: Path) -> None:
    asked = msgspec.structs.replace(submit(1, 3), **fields)
    with pytest.raises(RequestRefused, match=words):
        EmbeddingEngine(folder).backend.check(EngineSequence.of(asked))


def test_a_model_that_writes_tokens_refuses_to_give_a_vector(tiny: Tiny) -> None:
    with pytest.raises(RequestRefused, match="gives no vectors"):
        tiny.backend().check(EngineSequence.of(submit(1, 3)))


def test_a_text_whose_cache_never_fits_is_refused(folder: Path) -> None:
    """And the longest that is not is named; a text that is read in one step needs no cache."""
    engine = EmbeddingEngine(folder, kv_cache_bytes=1000, prefill_chunk_tokens=16)
    ends = engine.ask([prompt_of(16, 1), prompt_of(200, 1)])
    assert ends[0].reason == "pooled"
    assert (ends[1].reason, ends[1].most_tokens) == ("refused", 16)


def test_a_vector_that_is_no_numbers_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 16 bits may overflow; the text beside it has its vector."""
    engine = EmbeddingEngine(folder, Pooler())
    whole = engine.backend._head.vectors

    def broken(pooled: Any) -> Any:
        vectors = np.array(whole(pooled))
        vectors[0, 3] = np.nan
        return vectors

    monkeypatch.setattr(engine.backend._head, "vectors", broken)
    ends = engine.ask([prompt_of(4, 1), prompt_of(4, 2)])
    assert sorted(end.reason for end in ends.values()) == ["failed", "pooled"]
