"""A cancel inside the engine, in each state that the plan knows: nothing of the request remains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.shared.messages import Cancel, Retired, ScriptedPlan, StepOutput, ToEngine
from tests.contracts.journal import alone, kv_bytes, prefixes_of, prompt_of, request

_PLAN = ScriptedPlan(prefill_tokens_per_step=20)
_SHARED_PREFIX = prompt_of(100, 1)


class _Engine:
    def __init__(self, budget_tokens: int = 1 << 20, slots: int = 8) -> None:
        self.backend = ScriptedBackend(_PLAN, kv_cache_bytes=budget_tokens * (KV_BYTES_PER_TOKEN + 4))
        self.loop = EngineLoop(self.backend, slots, PrefillPace(20))
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, Retired] = {}
        self.preemptions = 0

    def iterate(self, *commands: ToEngine) -> None:
        for frame in self.loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                self.tokens.setdefault(token.request_id, []).append(token.token)
            for retired in frame.retired:
                assert retired.request_id not in self.ends, "an end is reported once"
                self.ends[retired.request_id] = retired
            self.preemptions = frame.counters.preemptions

    def finish(self) -> None:
        for _ in range(5000):
            if self.loop.idle:
                break
            self.iterate()
        assert self.loop.idle
        assert kv_bytes(self.backend) == 0
        prefixes = prefixes_of(self.backend)
        assert prefixes.statistics().leases == 0
        assert prefixes.pinned_bytes() == 0
        assert not prefixes.check_integrity()


def _waiting_for_a_slot(engine: _Engine) -> int:
    for number in range(8):
        engine.iterate(request(number, prompt_of(30, 10 + number), 50))
    engine.iterate(request(99, prompt_of(30, 99), 50))
    return 99


def _looked_up(engine: _Engine) -> int:
    engine.iterate(request(1, _SHARED_PREFIX, 2))
    while not engine.loop.idle:
        engine.iterate()
    engine.iterate(request(2, [*_SHARED_PREFIX, 1, 2, 3], 50))
    return 2


def _leader(engine: _Engine) -> int:
    engine.iterate(*(request(number, [*_SHARED_PREFIX, number], 5) for number in range(3)))
    return 0


def _follower(engine: _Engine) -> int:
    engine.iterate(*(request(number, [*_SHARED_PREFIX, number], 5) for number in range(3)))
    return 2


def _prefilling(engine: _Engine) -> int:
    engine.iterate(request(1, _SHARED_PREFIX, 5))
    engine.iterate()
    return 1


def _decoding(engine: _Engine) -> int:
    engine.iterate(request(1, _SHARED_PREFIX, 500))
    while 1 not in engine.tokens:
        engine.iterate()
    return 1


@pytest.mark.parametrize(
    "place", [_waiting_for_a_slot, _looked_up, _leader, _follower, _prefilling, _decoding]
)
def test_a_cancel_leaves_nothing(place: Callable[[_Engine], int]) -> None:
    """Its end is reported in the same turn, its slot and its lease are free, and the others get their
    tokens."""
    engine = _Engine()
    victim = place(engine)
    engine.iterate(Cancel(victim))
    assert engine.ends[victim].reason == "cancelled"
    engine.finish()
    for number, retired in engine.ends.items():
        if number != victim:
            assert retired.reason == "length"


def test_followers_of_a_cancelled_leader_have_their_tokens() -> None:
    """Another sequence leads."""
    engine = _Engine()
    submits = [request(number, [*_SHARED_PREFIX, number], 5) for number in range(3)]
    engine.iterate(*submits)
    engine.iterate(Cancel(0))
    engine.finish()
    for submit in submits[1:]:
        assert engine.tokens[submit.request_id] == alone(ScriptedBackend(_PLAN), submit)


def test_a_preempted_request_can_be_cancelled_while_it_waits() -> None:
    """It is first in the queue again: its cancel ends it there, and the other goes on."""
    engine = _Engine(budget_tokens=1500)
    first, second = (request(number, prompt_of(100, number), 1100) for number in range(2))
    engine.iterate(first)
    for _ in range(30):
        engine.iterate()
    engine.iterate(second)
    while not engine.preemptions:
        engine.iterate()
    engine.iterate(Cancel(1))
    assert engine.ends[1].reason == "cancelled"
    engine.finish()
    assert engine.tokens[0] == alone(ScriptedBackend(_PLAN), first)
