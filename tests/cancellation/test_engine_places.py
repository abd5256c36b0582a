"""A cancel inside the engine of who shares a prefix: nothing of the request remains, and the others go on.

`tests/scheduler/engine/test_loop.py` cancels in every other state.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.shared.messages import Cancel, Retired, ScriptedPlan, StepOutput, ToEngine
from tests.contracts.journal import alone, kv_bytes, prefixes_of, prompt_of, request
from tests.scheduler.engine.prefix.integrity import check_integrity

_PLAN = ScriptedPlan(prefill_tokens_per_step=20)
_SHARED_PREFIX = prompt_of(100, 1)


class _Engine:
    def __init__(self) -> None:
        self.backend = ScriptedBackend(_PLAN, kv_cache_bytes=(1 << 20) * (KV_BYTES_PER_TOKEN + 4))
        self.loop = EngineLoop(self.backend, 8, PrefillPace(20))
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, Retired] = {}

    def iterate(self, *commands: ToEngine) -> None:
        for frame in self.loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                self.tokens.setdefault(token.request_id, []).append(token.token)
            for retired in frame.retired:
                assert retired.request_id not in self.ends, "an end is reported once"
                self.ends[retired.request_id] = retired

    def finish(self) -> None:
        for _ in range(5000):
            if self.loop.idle:
                break
            self.iterate()
        assert self.loop.idle
        assert kv_bytes(self.backend) == 0
        prefixes = prefixes_of(self.backend)
        assert prefixes.statistics().leases == 0
        check_integrity(prefixes)


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


@pytest.mark.parametrize("place", [_looked_up, _leader, _follower])
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
