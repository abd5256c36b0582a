"""A cancel in the engine of who shares a prefix; `scheduler/engine/test_loop.py` has all other states."""

from __future__ import annotations

from collections import defaultdict

import pytest

from scheduler.engine.loop import EngineLoop
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.shared.messages import Cancel, ScriptedPlan, StepOutput, ToEngine
from tests.contracts.journal import alone, kv_bytes, prefixes_of, prompt_of, request

_PLAN = ScriptedPlan(prefill_tokens_per_step=20)
_SUBMITS = [request(number, [*prompt_of(100, 1), number], 5) for number in range(3)]


@pytest.mark.parametrize(
    ("victim", "is_cached"), [(2, True), (0, False), (2, False)], ids=["after a hit", "leader", "follower"]
)
def test_a_cancel_leaves_nothing_and_the_others_have_their_tokens(victim: int, is_cached: bool) -> None:
    """Its end is reported in the same turn, its slot and its lease are free. Of a leader's followers another
    one leads."""
    backend = ScriptedBackend(_PLAN, kv_cache_bytes=(1 << 20) * (KV_BYTES_PER_TOKEN + 4))
    loop = EngineLoop(backend, 8, PrefillPace(20))
    tokens, ends = defaultdict[int, list[int]](list), list[tuple[int, str]]()

    def iterate(*commands: ToEngine) -> None:
        for frame in loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                tokens[token.request_id].append(token.token)
            ends.extend((retired.request_id, retired.reason) for retired in frame.retired)

    def finish() -> None:
        while not loop.idle:
            iterate()

    if is_cached:
        iterate(_SUBMITS[0])
        finish()
    iterate(*_SUBMITS[is_cached:])
    iterate(Cancel(victim))
    assert ends[-1] == (victim, "cancelled")
    finish()
    assert len(ends) == 3
    for submit in _SUBMITS:
        if submit.request_id != victim:
            assert tokens[submit.request_id] == alone(ScriptedBackend(_PLAN), submit)
    prefixes = prefixes_of(backend)
    assert (kv_bytes(backend), prefixes.statistics().leases, prefixes.pinned_bytes()) == (0, 0, 0)
