"""Our assumptions about mlx-lm, tested without our own code: one test for each.

If an upgrade of mlx-lm breaks one of these, its docstring names the change in mlx-lm, and the code of ours
that depends on it.
"""

from __future__ import annotations

import importlib.metadata

import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache, make_prompt_cache

from scheduler.engine.mlx.upstream.mend import mend
from tests.scheduler.engine.mlx.reuse import words
from tests.scheduler.engine.mlx.zoo.census import build


def test_the_version_is_the_one_we_wrote_against() -> None:
    """Any other release: its `insert` renamed the stop argument in each of the last three lines, and a fix
    may change tokens. Before raising the pin, read the change log with the tests below."""
    assert importlib.metadata.version("mlx-lm") == "0.32.2"
    requirements = importlib.metadata.requires("penstock") or []
    assert "mlx-lm==0.32.2" in requirements


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


def test_sparse_blocks_of_minimax_m3_are_counted_from_the_first_column() -> None:
    """A row of 62 tokens beside one of 75 has other logits than alone, and none with our `RowBlocks`. When
    the first fails, that class can go."""
    steps = mx.array([[5], [6]])
    for ours in (False, True):
        model, _ = build("minimax_m3_vl")
        model = mend(model) if ours else model
        rows = [make_prompt_cache(model) for _ in range(3)]
        for row, tokens in zip(rows, (words(75, 1), words(62, 2), words(62, 2)), strict=True):
            model(mx.array([tokens]), cache=row)
        batch = [long.merge([long, short]) for long, short, _ in zip(*rows, strict=True)]
        found, alone = model(steps, cache=batch)[1:], model(steps[1:], cache=rows[2])
        assert bool(mx.allclose(found, alone, atol=1e-3)) == ours
