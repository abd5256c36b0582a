"""Random company (`company.py`) of a few kinds of cache, in few schedules; with `ZOO=whole` in many, as
`make zoo` runs it.
"""

from __future__ import annotations

import os

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.planning.prefill import Chunk
from scheduler.shared.messages import KvCacheDtype
from tests.contracts.journal import Rows, request, step_of
from tests.examples import examples, sampled
from tests.scheduler.engine.mlx.reuse import ReuseEngine, words
from tests.scheduler.engine.mlx.zoo.census import build
from tests.scheduler.engine.mlx.zoo.company import Kind
from tests.scheduler.engine.mlx.zoo.faults import FALLBACKS
from tests.scheduler.engine.mlx.zoo.kinds import KINDS
from tests.scheduler.engine.mlx.zoo.weights import REFUSED, base_of

_WHOLE = os.environ.get("ZOO") == "whole"
_EXAMPLES = 200 if _WHOLE else max(4, examples(20))
_PAIRS = 200 if _WHOLE else examples(6)
_PACKED = [name for name in KINDS if name not in ("rwkv7", "deepseek_v41")]
"""Without those that have nothing to pack: recurrent states only, and one row a model call."""


def _kind(name: str, kv_cache_dtype: KvCacheDtype = "auto") -> Kind:
    small = not _WHOLE and name in ("qwen3", "gpt_oss", "qwen3_next", "deepseek_v3")
    return Kind(name, kv_cache_dtype, small=small)


@pytest.mark.timeout(60 + 10 * _EXAMPLES)
@pytest.mark.parametrize("name", sampled(KINDS, ("qwen3", "gpt_oss", "qwen3_next", "minimax_m3_vl")))
def test_in_any_company_each_has_its_own_tokens(name: str) -> None:
    """Random lengths, prefixes, parameters, joins and leaves in random prefill budgets, on this device and on
    one of its own. They do meet, find prefixes where the model may have any, are preempted, and verify drafts
    where it does."""
    kind = _kind(name)
    kind.meet(_EXAMPLES, 0)
    assert kind.most_rows > 2
    assert (kind.cached_tokens > 0) == kind.batching.prefixes
    if _EXAMPLES >= 12:
        assert min(kind.preemptions, kind.deaths) > 0
        assert (kind.accepted_drafts > 0) == kind.verifies


@pytest.mark.timeout(60 + 3 * _PAIRS)
@pytest.mark.parametrize("name", sampled(KINDS, ("gpt_oss", "qwen3_next")))
def test_where_one_prompt_is_the_beginning_of_another_each_has_its_own_tokens(name: str) -> None:
    """Equal, or longer by a few tokens; they come in one turn or apart, end with their first token or their
    second, ask for their prompt's log-probabilities, and leave in that turn."""
    _kind(name).meet(0, _PAIRS)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", KINDS)
def test_so_it_is_in_many_schedules(name: str) -> None:
    Kind(name).meet(60, 200)


def test_a_chunk_that_follows_single_tokens_sees_the_whole_window() -> None:
    """They turn the ring of a window, before the shorter row has filled it; few schedules meet that."""
    found = []
    for singles in (0, 3):
        engine = ReuseEngine(build("llama+windows")[0], "llama+windows", prefill_chunk_tokens=31)
        rows = Rows(engine.backend)
        asked = (request(number, words(length, number), 1) for number, length in enumerate((42, 37)))
        sequences = [rows.admit(msgspec.structs.replace(one, top_logprobs=0)) for one in asked]
        for chunks in ((31, 26), *singles * ((1, 1),)):
            rows.execute(step_of(sequences, tuple(map(Chunk, (0, 1), chunks))))
        found.append([token.logprobs for token in rows.step().tokens])
    for beside, alone in zip(*found, strict=True):
        assert beside is not None
        assert alone is not None
        assert beside.chosen == pytest.approx(alone.chosen, abs=1e-4)


@pytest.mark.timeout(60 + 10 * _EXAMPLES)
@pytest.mark.parametrize("name", sampled(_PACKED, ["qwen3"]))
@pytest.mark.parametrize("kv_cache_dtype", sampled(["q8", "k8v4", "q4"], ["q8"]))
def test_so_has_each_where_keys_and_values_are_packed(name: str, kv_cache_dtype: KvCacheDtype) -> None:
    """Within less than packing itself changes (`rounding.py`)."""
    kind = _kind(name, kv_cache_dtype)
    kind.meet(max(3, _EXAMPLES // 2), 0)
    assert kind.most_rows > 2
    assert kind.cached_tokens > 0


_IN_OTHER_WEIGHTS = ["qwen3@affine4", "gemma3_text@bfloat16", "qwen3_5@mxfp4"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sampled(_IN_OTHER_WEIGHTS, _IN_OTHER_WEIGHTS[:2]))
def test_so_has_each_in_16_bits_and_quantised_weights(name: str) -> None:
    """But where rounding decides (`rounding.py`). A sample; `make zoo` checks all kinds in all weights."""
    kind = Kind(name, small=name in _IN_OTHER_WEIGHTS[:2])
    kind.meet(6, 0)
    assert kind.batching.fallbacks == FALLBACKS.get(base_of(name), ((), ""))[0]


def test_weights_that_are_refused_cannot_be_computed() -> None:
    """A later MLX that computes one of these fails here, and the entry must go."""
    for name in REFUSED:
        model, _ = build(name)
        with pytest.raises(RuntimeError, match="only supports float32"):
            mx.eval(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)))
