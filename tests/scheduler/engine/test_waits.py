"""What requests without a slot wait for: why the plan does not admit them, and what the parent learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.budget.policy import Allowance, Relief
from scheduler.engine.plan import PATIENCE_SECONDS, plan
from scheduler.engine.planning.memory import Memory
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import Cancel, ScriptedPlan, StepOutput, ToEngine, WaitReason
from scheduler.shared.row_bytes import RowBytes
from tests.contracts.journal import prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.heard import HeardLoop
from tests.scheduler.engine.test_plan import state_of


def unlike(request_id: int, tokens: int = 20) -> EngineSequence:
    return EngineSequence.of(request(request_id, prompt_of(tokens, request_id)))


def test_a_plan_says_why_each_is_not_admitted() -> None:
    """All slots are taken, or the guard holds admission."""
    waiting = [unlike(number) for number in range(3)]
    assert plan(state_of(waiting, free=0), 0.0).waits == dict.fromkeys(range(3), "slot")
    assert plan(state_of(waiting, free=2), 0.0).waits == {2: "slot"}
    held = Allowance(Relief.HOLD)
    assert plan(replace(state_of(waiting, [unlike(9)]), allowance=held), 0.0).waits == dict.fromkeys(
        range(3), "memory"
    )


def test_who_does_not_fit_waits_for_the_kv_cache() -> None:
    """And after its patience those behind it do, too: what becomes free is reserved for it."""
    row, large, small = unlike(0), unlike(1, 4000), unlike(2)
    memory = Memory(2000, RowBytes(token_bytes=1), 0, lambda: 0)
    assert plan(state_of([large, small], [row], memory=memory), 0.0).waits == {1: "kv_cache"}
    late = plan(state_of([large, small], [row], memory=memory), PATIENCE_SECONDS + 1)
    assert late.waits == {1: "kv_cache", 2: "kv_cache"}


class Told(HeardLoop):
    """And what it told of each request."""

    def __init__(self, slots: int, kv_cache_bytes: int = -1) -> None:
        backend = ScriptedBackend(ScriptedPlan(prefill_tokens_per_step=8), kv_cache_bytes=kv_cache_bytes)
        super().__init__(backend, slots, clock=lambda: 0.0)
        self.reasons: dict[int, list[WaitReason]] = {}
        self.admitted: list[int] = []

    def iterate(self, *commands: ToEngine) -> Sequence[StepOutput]:
        before = self.retired.keys() - set[int]()
        outputs = super().iterate(*commands)
        for wait in (wait for output in outputs for wait in output.waits):
            assert wait.request_id not in before, "the parent does not know it any more"
            self.reasons.setdefault(wait.request_id, []).append(wait.waits_for)
            self.admitted += [wait.request_id] if wait.waits_for == "nothing" else []
        return outputs


def test_a_preempted_row_is_reported_once_and_goes_on_before_who_came_later() -> None:
    """Its answer grew until the KV budget had no room for both."""
    told = Told(slots=2, kv_cache_bytes=1500 * (KV_BYTES_PER_TOKEN + 4))
    told.iterate(request(1, prompt_of(100, 1), 1100))
    for _ in range(50):
        told.iterate()
    told.iterate(request(2, prompt_of(100, 2), 1100), request(3, prompt_of(700, 3), 600))
    told.finish()
    assert told.reasons[2] == ["preempted", "nothing"]
    assert told.admitted == [2, 3]


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=25), st.integers(1, 3))
def test_what_it_sends_ends_with_a_slot_or_with_the_request(
    script: list[tuple[int, bool]], slots: int
) -> None:
    """For every schedule of arrivals and cancels: no reason twice in a row, and none after Retired."""
    told = Told(slots)
    cancelled: set[int] = set()
    known: set[int] = set()
    for number, cancel in script:
        if not cancel and number not in known:
            known.add(number)
            told.iterate(request(number, prompt_of(30, number % 3)))
        elif cancel and number in known:
            cancelled.add(number)
            told.iterate(Cancel(number))
    told.finish()
    for number, reasons in told.reasons.items():
        assert all(one != other for one, other in pairwise(reasons))
        assert reasons[-1] == "nothing" or number in cancelled
    assert told.retired.keys() == known
