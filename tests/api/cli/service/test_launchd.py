"""What is asked of launchd, which answers before it is done: a stand-in for launchctl drains, and refuses."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli import process_table
from api.cli.errors import OperatorError
from api.cli.process_table import Process
from api.cli.service import managers
from api.cli.service.managers import Launchd
from scheduler.engine.budget.readings import MacMemory

pytestmark = pytest.mark.slow

GUI, USER = f"gui/{os.getuid()}", f"user/{os.getuid()}"
DRAIN = 3
"""How often launchd still knows a job that drains."""


@dataclass
class Mac:
    folder: Path

    def has(self, *domains: str, refusals: str = "") -> None:
        (self.folder / "domains").write_text(" ".join(domains))
        (self.folder / "refusals").write_text(refusals)

    @property
    def job(self) -> str:
        path = self.folder / "job"
        return path.read_text().split()[0] if path.exists() else ""

    def calls(self, verb: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{verb} ")]


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mac:
    program = tmp_path / "bin" / "launchctl"
    program.parent.mkdir()
    fake = Path(__file__).parent / "fake_launchctl.py"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {fake} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LAUNCHCTL", str(tmp_path))
    (tmp_path / "drain").write_text(str(DRAIN))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Mac(tmp_path)


def test_a_user_with_a_desktop_has_its_agent_there(mac: Mac) -> None:
    mac.has(GUI, USER)
    launchd = Launchd("penstock", system=False)
    launchd.start()
    assert mac.job == f"{GUI}/penstock.penstock"
    assert (launchd.state().is_active, launchd.state().pid) == (True, 4242)


def test_without_a_desktop_the_agent_is_the_users(mac: Mac) -> None:
    """Over ssh, on a machine without a screen: launchd answers 125."""
    mac.has(USER)
    launchd = Launchd("penstock", system=False)
    launchd.start()
    assert mac.job == f"{USER}/penstock.penstock"
    assert launchd.state().is_active
    launchd.stop()
    assert Launchd("penstock", system=False).state().text == "not installed"


def test_where_there_is_no_domain_it_is_said_what_to_do(mac: Mac) -> None:
    mac.has("nobody/1")
    with pytest.raises(OperatorError, match="--system"):
        Launchd("penstock", system=False).start()


def test_a_daemon_is_the_machines(mac: Mac) -> None:
    mac.has("system", GUI, USER)
    Launchd("penstock", system=True).start()
    assert mac.job == "system/penstock.penstock"


def test_a_stop_ends_with_the_drain(mac: Mac) -> None:
    """bootout returns before the job has ended: who deletes its files or starts it anew then is early."""
    mac.has(GUI)
    launchd = Launchd("penstock", system=False)
    launchd.start()
    launchd.stop()
    assert len(mac.calls("print")) > DRAIN
    assert launchd.state().text == "not installed"


def test_a_restart_drains_and_then_starts_once(mac: Mac) -> None:
    mac.has(GUI)
    launchd = Launchd("penstock", system=False)
    launchd.start()
    launchd.start()
    assert mac.job == f"{GUI}/penstock.penstock"
    assert len(mac.calls("bootstrap")) == 2, "none came too early"


def test_what_launchd_has_not_quite_forgotten_is_tried_again(
    mac: Mac, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says input/output error, or operation in progress. One that stays is reported."""
    mac.has(GUI, refusals="5 37")
    Launchd("penstock", system=False).start()
    assert len(mac.calls("bootstrap")) == 3
    mac.has(GUI, refusals="5 5 5 5 5 5")
    monkeypatch.setattr(managers, "_BOOTSTRAP_SECONDS", 0.5)
    with pytest.raises(OperatorError, match="Bootstrap failed: 5"):
        Launchd("penstock", system=False).start()


def test_another_refusal_is_final(mac: Mac) -> None:
    mac.has(GUI, refusals="78")
    with pytest.raises(OperatorError, match="Bootstrap failed: 78"):
        Launchd("penstock", system=False).start()


def test_the_footprints_of_all_its_processes_are_its_memory(
    mac: Mac, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launchd counts none, and the engine, which has the model, is the server's child."""
    table = [Process(4242, 1, 4242, ""), Process(5, 1, 5, ""), Process(6, 4242, 6, ""), Process(7, 6, 6, "")]
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(process_table, "processes", lambda: table)
    monkeypatch.setattr(MacMemory, "footprint_bytes", lambda _, pid: {4242: 1, 6: 20, 7: None}[pid])
    mac.has(GUI)
    launchd = Launchd("penstock", system=False)
    launchd.start()
    assert launchd.state().memory_bytes == 21
    monkeypatch.setattr(MacMemory, "footprint_bytes", lambda *_: None)
    assert launchd.state().memory_bytes is None, "a daemon's are another user's"
