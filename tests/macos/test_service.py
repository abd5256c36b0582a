"""`serve` on a simulated Mac."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.end_to_end.serving import eventually, serving
from tests.macos.__main__ import SIMULATED

pytestmark = [
    pytest.mark.skipif(
        os.environ.get(SIMULATED) != "1", reason="`python -m tests.macos tests/macos` runs it"
    ),
    pytest.mark.timeout(180),
]


def test_a_mac_is_kept_awake_for_a_request(tmp_path: Path) -> None:
    said = tmp_path / "caffeinated"
    slow = ("--engine", "scripted", "--scripted", "step_seconds=0.02")
    with serving(*slow, environment={"CAFFEINATED": str(said)}) as served:
        assert not said.exists()
        for _ in range(2):
            assert served.post(max_tokens=75)[0] == 200
        eventually(said.exists)
        assert said.read_text() == "120\n", "once for both"
