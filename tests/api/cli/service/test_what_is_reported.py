"""What is read of service managers, and what `status` says of it."""

from __future__ import annotations

from pathlib import Path

from api.cli.service.managers import ManagerState, launchd_state, systemd_state
from api.cli.service.service_options import Platform, ServiceOptions
from api.cli.service.status import ServiceStatus, lines_of

GIB = 1 << 30
PRINTED = (Path(__file__).parent / "launchctl-print.txt").read_text()


def test_systemds_state() -> None:
    running = (
        "ActiveState=active\nSubState=running\nNRestarts=2\nLoadState=loaded\nMainPID=7\nMemoryCurrent=9\n"
    )
    assert systemd_state(running) == ManagerState("active (running)", True, 2, 7, 9)
    failed = "ActiveState=failed\nSubState=failed\nNRestarts=5\nLoadState=loaded\nMainPID=0\n"
    assert systemd_state(failed) == ManagerState("failed (failed)", False, 5)
    absent = (
        "ActiveState=inactive\nSubState=dead\nNRestarts=0\nLoadState=not-found\nMemoryCurrent=[not set]\n"
    )
    assert systemd_state(absent) == ManagerState("not installed", False, None)
    queued = "ActiveState=inactive\nSubState=dead\nNRestarts=0\nLoadState=loaded\nJob=8\n"
    assert systemd_state(queued) == ManagerState("inactive (dead)", True, 0), (
        "its start waits for other units"
    )
    assert systemd_state("") == ManagerState("unknown (?)", False, None)


def test_launchds_state_is_that_of_the_outermost_block() -> None:
    """Its coalitions have states, too, which come later."""
    assert launchd_state(PRINTED) == ManagerState("running, last exit code 1", True, 1, 4242)
    never = PRINTED.replace("last exit code = 1", "last exit code = (never exited)")
    assert launchd_state(never) == ManagerState("running", True, 1, 4242)
    waits = PRINTED.replace("\tstate = running", "\tstate = spawn scheduled", 1).replace(
        "\tpid = 4242\n", "", 1
    )
    assert launchd_state(waits) == ManagerState("spawn scheduled, last exit code 1", True, 1)
    failed = "x = {\n\tstate = not running\n\truns = 1\n\tlast exit code = 1\n}\n"
    assert launchd_state(failed) == ManagerState("not running, last exit code 1", False, 0)
    assert launchd_state("Could not find service") == ManagerState("not installed", False, None)


def test_a_person_reads_what_serves() -> None:
    found = ServiceStatus(
        "penstock",
        ManagerState("active (running)", True, 1, 12, 3 * GIB),
        "02:05",
        ServiceOptions(program=("/opt/penstock",), arguments=("--port", "8000"), platform=Platform.SYSTEMD),
        "http://127.0.0.1:8000",
        "ready",
        True,
    )
    assert lines_of(found) == [
        "service    penstock: active (running)",
        "restarts   1",
        "process    12, up 02:05",
        "program    /opt/penstock",
        "arguments  --port 8000",
        "ready      ready, at http://127.0.0.1:8000",
        "memory     3.2 GB, of all its processes",
    ]
