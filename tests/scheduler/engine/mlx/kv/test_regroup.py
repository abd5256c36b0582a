"""A join matches only the new row in the prefix tree, and rows lease what they attend to in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import StepResult
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.plan import Admit, StepPlan, with_changes
from tests.contracts.journal import kv_bytes
from tests.examples import examples
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words


def _save(monkeypatch: pytest.MonkeyPatch, engine: ReuseEngine, saving: Callable[[], bool]) -> None:
    """Let each plan say whether memory is saved."""
    whole = engine.backend.execute
    monkeypatch.setattr(engine.backend, "execute", lambda plan: whole(with_changes(plan, saving=saving())))


def test_who_saves_memory_copies_nothing_that_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a prompt that shares its prefix with nobody, which would otherwise have a copy of it."""
    own_bytes = []
    for saving in (False, True):
        engine = engine_of("qwen3")
        engine.iterate([engine.submit(words(200, 1), max_tokens=4)])
        engine.finish()
        _save(monkeypatch, engine, saving.__bool__)
        again = engine.submit(words(200, 1) + words(30, 2), max_tokens=4)
        engine.iterate([again])
        own_bytes.append(kv_bytes(engine.backend))
        engine.finish()
        engine.check(again)
    copied, saved = own_bytes
    assert saved <= copied / 3


def _check_in_place(engine: ReuseEngine) -> None:
    """What a row is said to attend to in place is what its batch does, in each layer, and it is leased."""
    batch = engine.batch
    for part in batch._batches:
        for layer in part.prompt_cache:
            if not isinstance(layer, BatchRows):
                continue
            for row, path, shared in zip(
                part.rows, layer.geometry.paths, layer.geometry.shared_tokens, strict=True
            ):
                assert shared == row.sequence.in_place_tokens
                assert row.lease is not None
                leased = row.lease.pieces[: len(path)]
                assert tuple((run.segment, run.tokens) for run in path) == leased


@settings(deadline=None, max_examples=examples(6))
@given(
    family=st.sampled_from(["qwen3", "qwen3_next", "deepseek_v3"]),
    group_cost_tokens=st.sampled_from([0, 20]),
    arrivals=st.lists(
        st.tuples(st.sampled_from([0, 1, 8]), st.sampled_from([0, 30, 42, 90]), st.integers(1, 60)),
        min_size=8,
        max_size=12,
    ),
)
def test_no_row_copies_what_its_admission_did_not_charge(
    family: str, group_cost_tokens: int, arrivals: list[tuple[int, int, int]]
) -> None:
    """Requests come at any time, behind any prefix: from its admission on, each attends in place to at least
    as much of its hit as was counted. More may be in place: prompts end, and rows come."""
    engine = engine_of(family, group_cost_tokens=group_cost_tokens)
    whole, admitted = engine.backend.execute, dict[int, Admit]()

    def execute(plan: StepPlan) -> StepResult:
        admitted.update((admit.sequence.request_id, admit) for admit in plan.admit)
        result = whole(plan)
        for request_id, row in engine.batch.rows.items():
            charged = admitted[request_id]
            assert row.sequence.cached_tokens == charged.cached_tokens
            assert row.sequence.in_place_tokens >= charged.in_place_tokens
        _check_in_place(engine)
        return result

    engine.backend.execute = execute  # type: ignore[method-assign]
    common = words(90, 1)
    engine.ask(engine.submit(common, boundaries=(30, 42)))
    submits = []
    for number, (wait, shared, own) in enumerate(arrivals):
        for _ in range(wait):
            engine.iterate()
        prompt = [*common[:shared], number, *words(own, number)]
        submits.append(engine.submit(prompt, boundaries=(30, 42), max_tokens=20))
        engine.iterate(submits[-1:])
    engine.finish()
    for submit in submits:
        engine.check(submit)
