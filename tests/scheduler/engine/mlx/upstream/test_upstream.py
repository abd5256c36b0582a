"""Our assumptions about mlx-lm, tested without our own code: one test for each.

If an upgrade of mlx-lm breaks one of these, its docstring names the change in mlx-lm, and the code of ours
that depends on it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import BatchRotatingKVCache, make_prompt_cache
from mlx_lm.utils import load_model

from tests.scheduler.engine.mlx.conftest import SHAPE, Tiny


def test_the_version_is_the_one_we_wrote_against() -> None:
    """Any other release: its `insert` renamed the stop argument in each of the last three lines, and a fix
    may change tokens. Before raising the pin, read the change log with the tests below."""
    assert importlib.metadata.version("mlx-lm") == "0.32.2"
    requirements = importlib.metadata.requires("penstock") or []
    assert "mlx-lm==0.32.2" in requirements


def test_load_model_gives_a_model_and_its_config(tiny: Tiny) -> None:
    """Catches another answer of `load_model`, and a cache whose layers do not show `keys` and `values`
    in four dimensions: `kv_bytes_per_token` is measured there."""
    model, config = load_model(tiny.folder, lazy=True)
    assert config["model_type"] == "qwen3"
    cache = make_prompt_cache(model)
    logits = model(mx.array([[0]]), cache=cache)
    assert logits.shape == (1, 1, SHAPE.vocabulary)
    assert len(cache) == SHAPE.layers
    assert all(layer.keys.ndim == 4 and layer.keys.shape[2] == 256 for layer in cache)


def _grown(tiny: Tiny, lengths: Sequence[int]) -> list[list[Any]]:
    """Caches of rows with these numbers of tokens, whose keys are the row's number."""
    rows = [make_prompt_cache(tiny.model) for _ in lengths]
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True), 1):
        for layer in row:
            layer.update_and_fetch(*[mx.full((1, 1, length, 16), number)] * 2)
    return rows


def _numbers(batch: Any) -> list[tuple[int, set[float], int]]:
    """What a batch has of each row: its uid, the keys of its layers, its tokens."""
    extracted = [batch.extract_cache(place) for place in range(len(batch))]
    return [
        (uid, {key for layer in layers for key in layer.keys.flatten().tolist()}, layers[0].size())
        for uid, layers in zip(batch.uids, extracted, strict=True)
    ]


def test_rows_join_move_and_leave_with_their_caches(tiny: Tiny) -> None:
    """Catches rows and caches in different orders, a uid that must be an integer, and a batch of decoding
    rows that computes or samples elsewhere than in `_step`: our rows are the uids of upstream's two batches,
    which are made by their constructors."""
    stepped: list[list[int]] = []

    class Decoding(GenerationBatch):  # type: ignore[misc]
        def _step(self) -> None:
            stepped.append(self.uids)
            self._next_logprobs = [None] * len(self.uids)

    def prompts(*rows: tuple[int, int]) -> Any:
        some = [()] * len(rows)
        caches = _grown(tiny, [tokens for _, tokens in rows])
        return PromptProcessingBatch(
            None, [number for number, _ in rows], caches, samplers=[None] * len(rows), logits_processors=some
        )

    batch = prompts((1, 5), (2, 9), (3, 2))
    assert _numbers(batch) == [(1, {1.0}, 5), (2, {2.0}, 9), (3, {3.0}, 2)]
    whole = batch.split([1])
    assert (_numbers(whole), _numbers(batch)) == ([(2, {2.0}, 9)], [(1, {1.0}, 5), (3, {3.0}, 2)])
    batch.extend(prompts((1, 7)))
    assert _numbers(batch) == [(1, {1.0}, 5), (3, {3.0}, 2), (1, {1.0}, 7)]
    decoding = Decoding.empty(None, None)
    assert not stepped
    for rest in (whole, batch):
        fields = (rest.samplers, None, rest.logits_processors, rest.stop_sequences, rest.max_tokens)
        inputs = mx.array(rest.uids, dtype=mx.uint32)
        decoding.extend(Decoding(None, rest.uids, inputs, rest.prompt_cache, rest.tokens, *fields))
    assert len(stepped) == 2
    assert decoding._next_tokens.tolist() == decoding.uids == [2, 1, 3, 1]
    decoding.filter([0, 3, 2])
    assert decoding._next_tokens.tolist() == decoding.uids == [2, 1, 3]
    assert _numbers(decoding) == [(2, {2.0}, 9), (1, {1.0}, 7), (3, {3.0}, 2)]


def test_a_turned_rings_mask_for_a_chunk_hides_a_token() -> None:
    """A ring of 8 that single tokens have turned: the mask that upstream makes for the next 4 tokens is not
    that of the ordered ring, which `PrefillBatch._order_rings` makes. When this fails, that method can go."""
    masks = []
    for ordered in (False, True):
        ring = BatchRotatingKVCache(8, [3, 0])
        for tokens in (7, 1, 1, 1):
            ring.update_and_fetch(mx.zeros((2, 1, tokens, 4)), mx.zeros((2, 1, tokens, 4)))
        assert ring.rotated
        if ordered:
            ring._temporal_order()
        masks.append(ring.make_mask(4))
    hidden = mx.not_equal(*masks)
    assert hidden.sum() == 1
    assert hidden[0, 0, 0, 0], "the oldest token of the row that is shorter"
