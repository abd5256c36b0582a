"""What touches the system runs on a simulated Mac as well: whatever breaks there only is found here."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.macos.__main__ import ROOT, SIMULATED, run

pytestmark = pytest.mark.skipif(os.environ.get(SIMULATED) == "1", reason="runs the simulation")

PARTS = (
    # Processes and their links; first, as it counts open descriptors.
    "tests/scheduler/processes",
    "tests/scheduler/shared/test_link_pair.py",
    "tests/scheduler/shared/test_local_network.py",
    "tests/scheduler/shared/test_model_fingerprint.py",
    "tests/scheduler/shared/test_user_cache.py",
    "tests/scheduler/engine/test_dial.py",
    "tests/scheduler/engine/test_inbox.py",
    "tests/scheduler/engine/budget/test_system_memory.py",
    "tests/scheduler/intake/test_system_sleep.py",
    "tests/loadtests/test_processes.py",
    "tests/loadtests/test_launch.py",
    # The simulation, and launchd's agent.
    "tests/macos",
    # What managers, users and clients do.
    "tests/api/http/test_inherited_sockets.py",
    *(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests/api/cli/service").glob("test_*.py"))
        if path.name != "test_launchd.py"  # It is a Mac's wherever it runs.
    ),
    "tests/api/http/test_service_notice.py",
    "tests/api/test_sleep_prevention.py",
)


@pytest.mark.timeout(900)
def test_the_parts_that_touch_the_system_run_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: its start takes as long as most of them."""
    monkeypatch.setenv("EXAMPLES", "0.2")  # Rules hold here as elsewhere; what touches the system is no rule.
    done = run(PARTS, subprocess.PIPE)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-1000:]
