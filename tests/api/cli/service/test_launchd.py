"""What is asked of launchd, which answers before it is done: a stand-in for launchctl drains, and refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli import service
from api.cli.errors import OperatorError
from api.cli.service import Service, _start_job, _stop_job

pytestmark = pytest.mark.slow

GUI, USER = f"gui/{os.getuid()}", f"user/{os.getuid()}"
DRAIN = 3
"""How often launchd still knows a job that drains."""
AGENT = Service("penstock", system=False)


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
    monkeypatch.setattr("sys.platform", "darwin")
    (tmp_path / "drain").write_text(str(DRAIN))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Mac(tmp_path)


@pytest.mark.parametrize("domains", [(GUI, USER), (USER,)])
def test_a_job_is_in_the_first_domain_that_there_is(mac: Mac, domains: tuple[str, ...]) -> None:
    """The user's desktop; over ssh, on a machine without a screen, launchd answers 125."""
    mac.has(*domains)
    _start_job(AGENT)
    assert mac.job == f"{domains[0]}/penstock.penstock"


def test_where_there_is_no_domain_it_is_said_what_to_do(mac: Mac) -> None:
    mac.has("nobody/1")
    with pytest.raises(OperatorError, match="--system"):
        _start_job(AGENT)


def test_a_start_drains_what_runs_and_starts_once(mac: Mac) -> None:
    """bootout returns before the job has ended: who deletes its files or starts it anew then is early."""
    mac.has(GUI)
    _start_job(AGENT)
    _start_job(AGENT)
    assert mac.job == f"{GUI}/penstock.penstock"
    assert len(mac.calls("bootstrap")) == 2, "none came too early"
    before = len(mac.calls("print"))
    _stop_job(AGENT)
    assert len(mac.calls("print")) - before > DRAIN
    assert mac.job == ""


def test_what_launchd_has_not_quite_forgotten_is_tried_again(
    mac: Mac, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says input/output error, or operation in progress. One that stays is reported, and any other one."""
    mac.has(GUI, refusals="5 37")
    _start_job(AGENT)
    assert len(mac.calls("bootstrap")) == 3
    mac.has(GUI, refusals="5 5 5 5 5 5")
    monkeypatch.setattr(service, "_BOOTSTRAP_SECONDS", 0.5)
    for refusals, code in (("5 5 5 5 5 5", 5), ("78", 78)):
        mac.has(GUI, refusals=refusals)
        with pytest.raises(OperatorError, match=f"failed: {code}"):
            _start_job(AGENT)


def test_launchd_starts_the_server_with_a_log_of_its_own(tmp_path: Path) -> None:
    """Exit status 2 for a refused option, which is in the log, as all that it prints."""
    log = tmp_path / "logs" / "penstock.log"
    done = subprocess.run(
        [sys.executable, "-m", "api", "service", "run", str(log), "--max-slots", "none"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")
    assert "--max-slots" in log.read_text()
