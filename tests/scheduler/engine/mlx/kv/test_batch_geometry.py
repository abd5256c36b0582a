"""The batch's geometry, which is equal in all layers, is computed once a change, for any number of layers."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine.mlx.kv import batch_geometry
from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry, Run
from scheduler.engine.mlx.kv.batch_rows import BatchRows, RowStart
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.shared.messages import Cancel
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine, words

LAYERS = 3


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[BatchGeometry]:
    """Return all geometries that are made, in order."""
    made: list[BatchGeometry] = []
    whole = BatchGeometry.__init__

    def counted(self: BatchGeometry, *arguments: Any) -> None:
        made.append(self)
        whole(self, *arguments)

    monkeypatch.setattr(batch_geometry.BatchGeometry, "__init__", counted)
    return made


def _segment(tokens: int) -> KvSegment:
    return KvSegment([(mx.ones((1, 1, tokens, 4)), mx.ones((1, 1, tokens, 4)))] * LAYERS, tokens)


def _batch(*shared: tuple[Run, ...], copied: int = 2) -> list[BatchRows]:
    """A layer each. All rows begin with `shared` in place, and copy some tokens behind it."""
    own = (Run(_segment(copied), copied),)
    rows = [BatchGeometry((path,), (0,)) for path in shared]
    return [_merged([RowStart(layer, row, own, 8) for row in rows]) for layer in range(LAYERS)]


def _merged(rows: list[RowStart]) -> BatchRows:
    """As upstream does."""
    return rows[0].merge(rows)


def _check_shared(batch: list[BatchRows]) -> None:
    assert len({id(layer.geometry) for layer in batch}) == 1
    assert len({id(layer.offset) for layer in batch}) == 1


def test_every_change_makes_one_geometry(made: list[BatchGeometry]) -> None:
    """A join, a leave, a chunk of unequal prompts, a longer run in place, a split."""
    run, longer = Run(_segment(5), 5), (Run(_segment(5), 5), Run(_segment(2), 2))
    batch, other = _batch((run,), (run,)), _batch((run,))
    made.clear()
    for ours, theirs in zip(batch, other, strict=True):
        ours.extend(theirs)
    assert len(made) == 1
    _check_shared(batch)
    for layer in batch:
        layer.filter([0, 2])
    assert len(made) == 2
    for layer in batch:
        layer.prepare(right_padding=[0, 1])
        layer.update_and_fetch(mx.ones((2, 1, 3, 4)), mx.ones((2, 1, 3, 4)))
    _check_shared(batch)
    for layer in batch:
        layer.finalize()
    assert len(made) == 3
    for layer in batch:
        layer.rebase({0: longer})
    assert len(made) == 4
    _check_shared(batch)
    split = copy.deepcopy(batch)
    assert len(made) == 4
    for layer in batch:
        layer.filter([0])
    for layer in split:
        layer.filter([1])
    assert len(made) == 6
    _check_shared(batch)
    _check_shared(split)
    assert batch[0].geometry is not split[0].geometry


def test_what_changes_nothing_makes_none(made: list[BatchGeometry]) -> None:
    """The same rows in the same order, beginning with the same runs; a step."""
    run = Run(_segment(5), 5)
    batch = _batch((run,), (run,))
    made.clear()
    for layer in batch:
        before = layer.groups
        layer.filter([0, 1])
        layer.rebase({1: (Run(run.segment, 5),)})
        layer.update_and_fetch(mx.ones((2, 1, 1, 4)), mx.ones((2, 1, 1, 4)))
        assert layer.groups is before
    assert made == []


def test_offsets_are_positions_and_one_array_a_step() -> None:
    """What is shared counts; a layer that has not been written in this step has the position before it."""
    run = Run(_segment(5), 5)
    batch = _batch((run,), ())
    first, second, _ = batch
    assert first.offset.tolist() == [7, 2]
    first.update_and_fetch(mx.ones((2, 1, 1, 4)), mx.ones((2, 1, 1, 4)))
    assert second.offset.tolist() == [7, 2]
    second.update_and_fetch(mx.ones((2, 1, 1, 4)), mx.ones((2, 1, 1, 4)))
    assert second.offset.tolist() == [8, 3]
    assert first.offset is second.offset


def test_a_layer_of_its_own_columns_keeps_its_own_geometry() -> None:
    """One that was never written has no columns to pad: its rows' positions stay right."""
    run = Run(_segment(5), 5)
    long, short = _batch((run,), copied=2), _batch((), copied=6)
    silent = _merged([RowStart(0, BatchGeometry(((run,),), (0,)), (), 0)])
    silent.extend(_merged([RowStart(0, BatchGeometry(((),), (0,)), (), 0)]))
    for ours, theirs in zip(long, short, strict=True):
        ours.extend(theirs)
    assert long[0].offset.tolist() == [7, 6]
    assert long[0].geometry.padding == (4, 0)
    assert silent.offset.tolist() == [5, 0]


def _scenario(made: list[BatchGeometry], layers: int) -> list[int]:
    """How many geometries each turn made, of a model with this many layers: joins behind a shared prefix and
    without one, unequal chunks, a leave."""
    engine = ReuseEngine(random_model("qwen3", num_hidden_layers=layers), "qwen3")
    shared_prefix = words(24, 1)
    arrivals = {
        0: [shared_prefix + words(3, 2)],
        6: [shared_prefix + words(4, 3), shared_prefix + words(7, 4), words(19, 5)],
        14: [words(5, 6)],
    }
    counts = []
    for turn in range(30):
        commands: list[Any] = [engine.submit(each, max_tokens=12) for each in arrivals.get(turn, [])]
        made.clear()
        engine.iterate([*commands, *([Cancel(2)] if turn == 11 else [])])
        counts.append(len(made))
        for batch in engine.batch._batches:
            assert len({id(layer.geometry) for layer in batch.prompt_cache}) <= 1
    return counts


def test_an_engine_makes_as_many_for_eight_layers_as_for_two(made: list[BatchGeometry]) -> None:
    """Whatever upstream does layer by layer."""
    counts = _scenario(made, 8)
    assert counts == _scenario(made, 2)
    assert sum(counts) > 8
    assert 0 in counts, "a plain step makes none"
