"""A join matches only the new row in the prefix tree, and rows lease what they attend to in place."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import StepResult
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.plan import Admit, StepPlan, with_changes
from scheduler.engine.prefix import radix_tree
from scheduler.shared.messages import Cancel
from scheduler.shared.token_ids import common_run
from tests.contracts.journal import kv_bytes, prefixes_of
from tests.examples import examples, sampled
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words

PROMPT_TOKENS = 24
_MOST_TURNS = 40


class Counted:
    """Tokens that the prefix tree compared, and leases that it gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared_tokens = self.leases = 0
        whole_lease = radix_tree.RadixTree.lease

        def compare(left: array[int], start: int, right: array[int], limit: int) -> int:
            self.compared_tokens += limit
            return common_run(left, start, right, limit)

        def lease(tree: Any, match: Any) -> Any:
            self.leases += 1
            return whole_lease(tree, match)

        monkeypatch.setattr(radix_tree, "common_run", compare)
        monkeypatch.setattr(radix_tree.RadixTree, "lease", lease)


def _join(engine: ReuseEngine, prompt: list[int]) -> None:
    """Until it decodes."""
    decoding = engine.batch.decoding
    engine.iterate([engine.submit(prompt, max_tokens=1000)])
    for _ in range(_MOST_TURNS):
        if engine.batch.decoding > decoding:
            return
        engine.iterate()
    raise AssertionError("it never joined")


@pytest.mark.parametrize("family", ["qwen3", "qwen3_next"])
@pytest.mark.parametrize("shared_tokens", [0, 18])
def test_a_join_costs_the_tree_the_same_however_many_run(
    monkeypatch: pytest.MonkeyPatch, family: str, shared_tokens: int
) -> None:
    """Tokens compared and leases taken, with two rows and with five that decode; behind a prefix of all of
    them, or of nobody."""
    costs = []
    for others in (2, 5):
        engine = engine_of(family)
        prompts = [
            [*words(shared_tokens, 1), number, *words(PROMPT_TOKENS - shared_tokens, 2 + number)]
            for number in range(others + 1)
        ]
        for prompt in prompts[:-1]:
            _join(engine, prompt)
        with monkeypatch.context() as patched:
            counted = Counted(patched)
            _join(engine, prompts[-1])
        costs.append((counted.compared_tokens, counted.leases))
    assert costs[0] == costs[1]


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


@settings(derandomize=True, deadline=None, max_examples=examples(6))
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


@pytest.mark.parametrize("family", sampled(["qwen3", "gpt_oss"], ["gpt_oss"]))
@pytest.mark.parametrize("saving", [False, True])
def test_leases_are_what_is_in_place(monkeypatch: pytest.MonkeyPatch, family: str, saving: bool) -> None:
    """Over 60 turns in which prompts behind nested prefixes come, are cancelled and end, with room for few
    of them: each has its own tokens. Also where memory is saved now and then."""
    generator = random.Random(5)
    engine = engine_of(family, budget_bytes=1 << 17)
    _save(monkeypatch, engine, lambda: saving and generator.random() < 0.5)
    common = words(30, 1)
    branches = [common + words(12, seed) for seed in (2, 3)]
    submits: list[Any] = []
    cancelled = set[int]()
    most_in_place = 0
    for _ in range(60):
        commands: list[Any] = []
        if generator.random() < 0.3:
            start = generator.choice([common, *branches, branches[0][:36], []])
            prompt = start + [generator.randrange(300) for _ in range(generator.randrange(1, 20))]
            submits.append(engine.submit(prompt, max_tokens=generator.randrange(1, 20)))
            commands.append(submits[-1])
        if submits and generator.random() < 0.03:
            cancelled.add(submits[-1].request_id)
            commands.append(Cancel(submits[-1].request_id))
        engine.iterate(commands)
        _check_in_place(engine)
        rows = engine.batch.rows.values()
        most_in_place = max([most_in_place, *(row.sequence.in_place_tokens for row in rows)])
    engine.finish()
    assert most_in_place >= len(common)
    cache = prefixes_of(engine.backend).statistics()
    assert cache.hit_tokens > 0
    assert cache.evicted_tokens["budget"] > 0
    for submit in submits:
        if submit.request_id not in cancelled:
            engine.check(submit)
