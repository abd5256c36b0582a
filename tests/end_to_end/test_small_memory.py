"""Sixteen agents on a server in a control group with little memory: `small_memory.py` in small."""

from __future__ import annotations

import pytest

from tests.end_to_end.control_group import control_group
from tests.end_to_end.small_memory import limited

_SECONDS = 6.0
"""Without the guard the engine was killed in the ninth second."""
_SPARE_BYTES = 300 << 20


@pytest.mark.timeout(900)
def test_no_engine_is_killed_where_waiting_does() -> None:
    """And all answers are those of an undisturbed run."""
    with control_group() as group:
        if group is None:
            pytest.skip("no control group can be made here")
        outcome = limited(group, _SECONDS, _SPARE_BYTES, turns=3)
    assert outcome.deaths == 0
    assert outcome.failures == []
    assert outcome.different == 0
    assert outcome.turns > 0
