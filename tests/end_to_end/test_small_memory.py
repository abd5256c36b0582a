"""Sixteen agents on a server in a control group with little memory: `small_memory.py` in small."""

from __future__ import annotations

import pytest

from tests.end_to_end.control_group import control_group
from tests.end_to_end.small_memory import AGENTS, limited

_SECONDS = 6.0
"""Without the guard the engine was killed in the ninth second."""
_SAMPLE_SECONDS = 1.0
_SPARE_BYTES = 300 << 20


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seconds", "turns", "agents"),
    [
        pytest.param(_SAMPLE_SECONDS, 1, 3, id="sample"),
        pytest.param(_SECONDS, 3, AGENTS, id="whole", marks=pytest.mark.long),
    ],
)
def test_no_engine_is_killed_where_waiting_does(seconds: float, turns: int, agents: int) -> None:
    """And all answers are those of an undisturbed run."""
    with control_group() as group:
        if group is None:
            pytest.skip("no control group can be made here")
        outcome = limited(group, seconds, _SPARE_BYTES, turns, agents)
    assert outcome.deaths == 0
    assert outcome.failures == []
    assert outcome.different == 0
    assert outcome.turns > 0
