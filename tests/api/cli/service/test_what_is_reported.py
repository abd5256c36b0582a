"""What is read of service managers' answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.service.managers import Launchd, Manager, ManagerState, Systemd

RUNNING = "ActiveState=active\nSubState=running\nNRestarts=2\nLoadState=loaded\nMainPID=7\nMemoryCurrent=9\n"
FAILED = "ActiveState=failed\nSubState=failed\nNRestarts=5\nLoadState=loaded\nMainPID=0\n"
ABSENT = "ActiveState=inactive\nSubState=dead\nNRestarts=0\nLoadState=not-found\nMemoryCurrent=[not set]\n"
QUEUED = "ActiveState=inactive\nSubState=dead\nNRestarts=0\nLoadState=loaded\nJob=8\n"
"""Its start waits for other units."""

PRINTED = (Path(__file__).parent / "launchctl-print.txt").read_text()
"""Its coalitions have states, too, which come later."""
NEVER = PRINTED.replace("last exit code = 1", "last exit code = (never exited)")
WAITS = PRINTED.replace("\tstate = running", "\tstate = spawn scheduled", 1).replace("\tpid = 4242\n", "", 1)
ENDED = "x = {\n\tstate = not running\n\truns = 1\n\tlast exit code = 1\n}\n"


@pytest.mark.parametrize(
    ("kind", "answer", "state"),
    [
        (Systemd, RUNNING, ManagerState("active (running)", True, 2, 7, 9)),
        (Systemd, FAILED, ManagerState("failed (failed)", False, 5)),
        (Systemd, ABSENT, ManagerState("not installed", False, None)),
        (Systemd, QUEUED, ManagerState("inactive (dead)", True, 0)),
        (Systemd, "", ManagerState("unknown (?)", False, None)),
        (Launchd, PRINTED, ManagerState("running, last exit code 1", True, 1, 4242)),
        (Launchd, NEVER, ManagerState("running", True, 1, 4242)),
        (Launchd, WAITS, ManagerState("spawn scheduled, last exit code 1", True, 1)),
        (Launchd, ENDED, ManagerState("not running, last exit code 1", False, 0)),
        (Launchd, "Could not find service", ManagerState("not installed", False, None)),
    ],
)
def test_a_state_is_read(
    kind: type[Manager], answer: str, state: ManagerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answer").write_text(answer)
    for name in ("systemctl", "launchctl"):
        (tmp_path / name).write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/answer\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert kind("penstock", system=False).state() == state
