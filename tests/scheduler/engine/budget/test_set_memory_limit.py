"""An engine whose memory limit changes while it runs, with the scripted back end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import StepResult
from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.drafts.speculation import DraftTokens, Proposal, Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import StepPlan
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import ScriptedPlan, SetMemoryLimit
from tests.contracts.check_memory_limit import (
    CHUNK,
    MACHINE_TOKENS,
    MEMORY_LIMIT_CHECKS,
    Engine,
    MakeLimited,
    limit_of,
)
from tests.contracts.journal import alone, prefixes_of, prompt_of, request
from tests.examples import examples
from tests.fakes.fake_device import FakeDevice

_PLAN = ScriptedPlan(prefill_tokens_per_step=CHUNK)
_MACHINE_BYTES = MACHINE_TOKENS * KV_BYTES_PER_TOKEN


def _limited(limit: MemoryLimit, kv_bytes: int = _MACHINE_BYTES) -> ScriptedBackend:
    device = FakeDevice(_MACHINE_BYTES)
    backend = ScriptedBackend(
        _PLAN,
        kv_cache_bytes=kv_bytes,
        device=device,
        memory_limit_bytes=limit.limit_bytes,
        memory_most_bytes=limit.most_bytes,
    )
    device.held_bytes = backend._held_bytes
    return backend


def _backend(kv_tokens: int) -> ScriptedBackend:
    return _limited(limit_of(KV_BYTES_PER_TOKEN, kv_tokens))


@pytest.mark.parametrize("check", MEMORY_LIMIT_CHECKS)
def test_contract(check: Callable[[MakeLimited], None]) -> None:
    check(_backend)


def test_an_engine_without_a_limit_ignores_one_and_answers() -> None:
    backend = ScriptedBackend(_PLAN, kv_cache_bytes=_MACHINE_BYTES)
    engine = Engine(backend)
    expected = dict(engine.answer([request(1, prompt_of(500, 1), 5)]))
    assert engine.iterate(SetMemoryLimit(1000, 2, 2000)) == 1
    assert engine.counters.guard.limit == 0
    engine.tokens = {}
    assert engine.answer([request(1, prompt_of(500, 1), 5)]) == expected


def test_a_limit_without_another_engine_changes_nothing() -> None:
    """One model has all of it: the message that says so evicts nothing and lowers no budget."""
    engine = Engine(_backend(6000))
    engine.answer([request(n, prompt_of(200, n), 5) for n in range(6)])
    assert engine.backend.cache is not None
    before, held = engine.backend.cache.prefixes, engine.counters.cache.kept_bytes
    budget_bytes = before.budget_bytes
    limit = limit_of(KV_BYTES_PER_TOKEN, 6000)
    engine.iterate(SetMemoryLimit(limit.limit_bytes, 1, limit.limit_bytes))
    assert before.budget_bytes == budget_bytes
    assert engine.counters.cache.kept_bytes == held


def test_a_changed_budget_costs_no_drafts() -> None:
    """What the last step reported of the rows stays true: what their grammars force, and that tokens are
    pending."""

    class Forcing(ScriptedBackend):
        def execute(self, plan: StepPlan) -> StepResult:
            result = super().execute(plan)
            return replace(result, forced=dict.fromkeys(self._rows, (1, 2, 3)) if plan.foresee else {})

    class Noting(Speculation):
        def proposals(
            self, rows: Iterable[EngineSequence], forced: DraftTokens, has_pending: bool
        ) -> list[Proposal]:
            known.append(forced)
            return []

    known: list[DraftTokens] = []
    limit = limit_of(KV_BYTES_PER_TOKEN, 3000)
    device = FakeDevice(_MACHINE_BYTES)
    backend = Forcing(
        _PLAN,
        kv_cache_bytes=_MACHINE_BYTES,
        device=device,
        memory_limit_bytes=limit.limit_bytes,
        memory_most_bytes=limit.most_bytes,
    )
    device.held_bytes = backend._held_bytes
    loop = EngineLoop(backend, 4, PrefillPace(CHUNK), speculation=Noting())
    loop.iterate([request(1, [1], 50)])
    loop.iterate([])
    before = prefixes_of(backend).budget_bytes
    loop.iterate([SetMemoryLimit(limit.limit_bytes // 2, 2, limit.most_bytes)])
    assert prefixes_of(backend).budget_bytes < before
    assert known == [{}, {1: (1, 2, 3)}, {1: (1, 2, 3)}]


def _four_rows() -> tuple[Engine, FakeDevice]:
    engine = Engine(_backend(6000))
    device = engine.backend.device
    assert isinstance(device, FakeDevice)
    engine.iterate(*(request(n, prompt_of(200, n), 400) for n in range(4)))
    while engine.counters.running < 4:
        engine.iterate()
    return engine, device


def test_what_was_given_up_for_a_limit_comes_back_with_it() -> None:
    """The guard's calm is for what other programs take, which come back."""
    engine, device = _four_rows()
    device.weights_bytes = engine.limit(6000).limit_bytes
    for _ in range(8):
        engine.iterate()
    assert engine.counters.guard.relief >= 3
    engine.iterate(SetMemoryLimit(3 * device.weights_bytes, 1, 3 * device.weights_bytes))
    assert engine.counters.guard.relief == 0
    engine.iterate()
    assert engine.counters.running == 4


def test_a_raised_limit_does_not_end_what_the_system_is_short_of() -> None:
    engine, device = _four_rows()
    device.outside_bytes = _MACHINE_BYTES
    for _ in range(8):
        engine.iterate()
    relief = engine.counters.guard.relief
    assert relief >= 3
    engine.iterate(engine.limit(12_000))
    assert engine.counters.guard.relief >= relief - 1
    device.outside_bytes = 0
    engine.finish()
    assert len(engine.retired) == 4


def test_an_operator_s_kv_budget_stays_within_a_part() -> None:
    """Beside other models it is a bound, and the engine's part another."""
    kv_bytes = 3000 * KV_BYTES_PER_TOKEN
    backend = _limited(limit_of(KV_BYTES_PER_TOKEN, 1000), kv_bytes)
    engine = Engine(backend)
    prefixes = prefixes_of(backend)
    engine.iterate(engine.limit(1000))
    assert prefixes.budget_bytes < 1100 * (KV_BYTES_PER_TOKEN + 4)
    engine.iterate(engine.limit(6000))
    assert prefixes.budget_bytes == kv_bytes


@settings(deadline=None, max_examples=examples(40), derandomize=True)
@given(
    st.lists(st.tuples(st.integers(5, 250), st.integers(1, 40)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4000)), max_size=6),
)
def test_whatever_limits_come_all_answers_are_those_of_an_undisturbed_run(
    asked: list[tuple[int, int]], limits: list[tuple[int, int]]
) -> None:
    submits = [request(n, prompt_of(length, n), answer) for n, (length, answer) in enumerate(asked)]
    engine = Engine(_backend(2000))
    engine.iterate(*submits)
    for turns, kv_tokens in limits:
        for _ in range(turns):
            engine.iterate()
        engine.iterate(engine.limit(kv_tokens))
    engine.finish()
    for submit in submits:
        assert engine.retired[submit.request_id].reason == "length"
        assert engine.tokens[submit.request_id] == alone(ScriptedBackend(_PLAN), submit)
    if limits:
        assert engine.counters.guard.limit == engine.limit(limits[-1][1]).limit_bytes
