"""What is asked of systemd, and what `install`, `restart` and `uninstall` ask of a service manager."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli.errors import OperatorError
from api.cli.service import commands, installation, status
from api.cli.service.managers import ManagerState, Systemd
from api.cli.service.service_options import Platform, ServiceOptions, places_of


@dataclass
class FakeManager:
    """Runs another process after each start, as `pids` has them."""

    pids: list[int | None]
    asked: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.asked.append("start")
        self.pids.pop(0)

    def stop(self) -> None:
        self.asked.append("stop")

    def reread(self) -> None:
        self.asked.append("reread")

    def state(self) -> ManagerState:
        pid = self.pids[0]
        return ManagerState("active (running)" if pid else "failed (failed)", pid is not None, 0, pid)

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        return ["echo", "penstock: the model has no weights"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(status, "probe", lambda url: ("ready", True))
    monkeypatch.setattr("sys.platform", "linux")
    return tmp_path


def run(home: Path, manager: FakeManager, *arguments: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "manager_of", lambda *_, **__: manager)
        environment = {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}
        return CliRunner().invoke(commands.service, list(arguments), env=environment)


def unit(home: Path, kind: str) -> str:
    return (home / "systemd" / "user" / f"penstock.{kind}").read_text()


def recorded(home: Path) -> ServiceOptions:
    environment = {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    return installation.recorded(
        places_of("penstock", Platform.SYSTEMD, system=False, environment=environment)
    )


@pytest.mark.slow
def test_a_service_is_installed_restarted_changed_and_removed(home: Path) -> None:
    """Another process answers after each; other addresses are listened on only after a stop."""
    manager = FakeManager([None, 1])
    assert run(home, manager, "install", "--", "--port", "8000").output.endswith("http://127.0.0.1:8000\n")
    again = run(home, manager, "install", "--", "--port", "8000")
    assert "penstock service restart -- ARGUMENTS" in str(again.exception)
    assert recorded(home).arguments == ("--port", "8000")
    before = unit(home, "service"), unit(home, "socket")

    manager.pids.append(2)
    assert run(home, manager, "restart").exit_code == 0
    assert (unit(home, "service"), unit(home, "socket")) == before
    manager.pids.append(3)
    assert run(home, manager, "restart", "--", "--port", "8000", "--max-slots", "4").exit_code == 0
    assert [*recorded(home).arguments[2:]] == ["--max-slots", "4"]
    assert manager.asked == ["start"] * 3

    manager.pids.append(4)
    assert run(home, manager, "restart", "--", "--port", "9000").output.endswith("http://127.0.0.1:9000\n")
    assert manager.asked[3:] == ["stop", "start"]
    assert "ListenStream=127.0.0.1:9000" in unit(home, "socket")
    shown = run(home, manager, "status")
    assert (shown.exit_code, "arguments  --port 9000" in shown.output) == (0, True), shown.output

    assert run(home, manager, "uninstall", "--remove").exit_code == 0
    assert manager.asked[5:] == ["stop", "reread"]
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_a_restart_that_fails_says_what_the_log_does(home: Path) -> None:
    """Nothing is written where an option is refused."""
    manager = FakeManager([None, 1])
    run(home, manager, "install", "--", "--port", "8000")
    refused = run(home, manager, "restart", "--", "--max-slots", "none")
    assert refused.exit_code != 0
    assert recorded(home).arguments == ("--port", "8000")
    manager.pids.append(None)
    failed = run(home, manager, "restart")
    assert isinstance(failed.exception, OperatorError)
    assert "failed (failed) (penstock: the model has no weights)" in str(failed.exception)


@pytest.mark.slow
def test_systemd_opens_the_sockets_first_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service alone is restarted, without waiting for it."""
    program = tmp_path / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for unit_file in ("penstock.socket", "penstock.service"):
        (tmp_path / unit_file).touch()
    systemd = Systemd("penstock", tmp_path, system=False)
    systemd.start()
    systemd.stop()
    assert (tmp_path / "calls").read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable penstock.socket penstock.service",
        "--user reset-failed penstock.socket penstock.service",
        "--user start penstock.socket",
        "--user restart --no-block penstock.service",
        "--user disable --now penstock.socket penstock.service",
    ]


@pytest.mark.slow
def test_systemd_starts_an_engine_without_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "penstock.service").touch()
    Systemd("penstock", tmp_path, system=False).start()
    assert (tmp_path / "calls").read_text().splitlines()[1:] == [
        "--user enable penstock.service",
        "--user reset-failed penstock.service",
        "--user restart --no-block penstock.service",
    ]
