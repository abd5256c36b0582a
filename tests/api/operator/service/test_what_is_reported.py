"""What is read of service managers, of memory and of metrics, and what `status` says of it."""

from __future__ import annotations

import pytest

from api.operator.service.control import ServeState, Status
from api.operator.service.managers import ManagerState, launchd_state, systemd_state
from api.operator.service.status import ServiceStatus, duration, lines
from api.operator.service.upgrade_room import Engines, engines_of, mac_available_bytes, room, tree_of

GIB = 1 << 30


def test_systemds_state() -> None:
    running = "ActiveState=active\nSubState=running\nNRestarts=2\nLoadState=loaded\n"
    assert systemd_state(running) == ManagerState("active (running)", True, 2)
    failed = "ActiveState=failed\nSubState=failed\nNRestarts=5\nLoadState=loaded\n"
    assert systemd_state(failed) == ManagerState("failed (failed)", False, 5)
    absent = "ActiveState=inactive\nSubState=dead\nNRestarts=0\nLoadState=not-found\n"
    assert systemd_state(absent) == ManagerState("not installed", False, None)
    queued = "ActiveState=inactive\nSubState=dead\nNRestarts=0\nLoadState=loaded\nJob=8\n"
    assert systemd_state(queued) == ManagerState("inactive (dead)", True, 0), (
        "its start waits for other units"
    )
    assert systemd_state("") == ManagerState("unknown (?)", False, None)


def test_launchds_state() -> None:
    running = (
        "gui/501/penstock.penstock = {\n\tactive count = 1\n\tstate = running\n\truns = 3\n\tpid = 9\n}\n"
    )
    assert launchd_state(running) == ManagerState("running", True, 2)
    failed = "x = {\n\tstate = not running\n\truns = 1\n\tlast exit code = 1\n}\n"
    assert launchd_state(failed) == ManagerState("not running, last exit code 1", False, 0)
    assert launchd_state("Could not find service") == ManagerState("not installed", False, None)


def test_two_engines_must_fit() -> None:
    """By the weights alone: the caches get what is left."""
    engines = Engines(10 * GIB, 4 * GIB, on_own_memory=False)
    assert room(engines, 12 * GIB, None).fits
    short = room(engines, 8 * GIB, None)
    assert not short.fits
    assert short.text == (
        "the engines hold 10.0 GiB of weights and 4.0 GiB of cache; the new ones need the weights a second"
        " time, and 8.0 GiB are available"
    )
    assert not room(engines, 12 * GIB, 9 * GIB).fits, "the unit's bound counts, too"
    assert room(Engines(10 * GIB, 0, on_own_memory=True), 8 * GIB, None).fits, "not the machine's memory"


@pytest.mark.parametrize("engines", [None, Engines(GIB, 0, on_own_memory=False)])
def test_what_is_not_known_refuses_nothing(engines: Engines | None) -> None:
    found = room(engines, None, None)
    assert found.fits
    assert "not known" in found.text


def test_metrics_are_added_over_engines() -> None:
    text = (
        "# HELP penstock_weights_bytes Bytes\n"
        'penstock_weights_bytes{engine="0",model="m"} 1000.0\n'
        'penstock_weights_bytes{engine="1",model="m"} 24.0\n'
        'penstock_kv_bytes{engine="0"} 5.0\npenstock_prefix_bytes{engine="0"} 7.0\n'
        'penstock_model_info{device="cpu: 2 cores",engine="0"} 1.0\n'
    )
    assert engines_of(text) == Engines(1024, 12, on_own_memory=False)


def test_a_macs_available_memory() -> None:
    text = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:      100.\n"
        "Pages active:    900.\nPages inactive:   20.\nPages purgeable:  3.\n"
    )
    assert mac_available_bytes(text) == 123 * 16384
    with pytest.raises(ValueError, match="something else"):
        mac_available_bytes("")


def test_memory_is_that_of_all_descendants() -> None:
    assert tree_of("  1 0 8\n 10 1 100\n 11 10 20\n 12 11 3\n 13 1 4000\n", 10) == 123 * 1024


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.9, "59 s"), (60, "1 min"), (7500, "2 h 5 min"), (90000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_person_reads_who_serves_and_who_retires() -> None:
    serving = ServeState(12, "0.2.0", ("/opt/penstock",), ("--port", "8000"), 30.0)
    old = ServeState(11, "0.1.0", ("/opt/penstock",), (), 7200.0)
    found = ServiceStatus(
        "penstock",
        ManagerState("active (running)", True, 1),
        Status(10, serving, (old,)),
        "http://127.0.0.1:8000",
        "ready",
        True,
        3 * GIB,
    )
    assert lines(found) == [
        "service    penstock: active (running)",
        "restarts   1",
        "process    12, version 0.2.0, up 30 s",
        "program    /opt/penstock",
        "arguments  --port 8000",
        "ready      ready, at http://127.0.0.1:8000",
        "memory     3.00 GiB, of all its processes",
        "retiring   11, version 0.1.0, up 2 h 0 min",
    ]
