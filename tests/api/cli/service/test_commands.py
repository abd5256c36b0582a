"""`penstock service` on a machine with systemd: what it writes, asks and says. Stand-ins for `systemctl` and
`journalctl` are programs."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli.errors import OperatorError
from api.cli.service import status
from api.cli.service.commands import service
from api.cli.service.managers import Systemd
from scheduler.errors import OptionError

SYSTEMCTL = """\
#!/bin/sh
# `show` says what `state` has, and each start makes a process of the number in `next`, or none.
cd "${0%/*}"
echo "$@" >> calls
case "$*" in
*" show "*) cat state 2>/dev/null ;;
*" disable "*) rm -f state ;;
*" restart "*)
    printf 'ActiveState=%s\\nMainPID=%s\\n' $(cat next) > state
    printf 'LoadState=loaded\\nSubState=running\\nNRestarts=1\\nMemoryCurrent=3221225472\\n' >> state ;;
esac
"""
JOURNALCTL = "#!/bin/sh\necho 'Nov 28 mac penstock: the model has no weights'\n"
KEY = "a-key-that-no-folder-is-named-after"


@dataclass
class Machine:
    home: Path
    programs: Path

    def penstock(self, *arguments: str, **variables: str) -> Result:
        environment = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "conf"), **variables}
        return CliRunner().invoke(service, list(arguments), env=environment)

    def done(self, *arguments: str, **variables: str) -> str:
        """Run a command that does its work, and return what it says."""
        result = self.penstock(*arguments, **variables)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    def next(self, state: str) -> None:
        (self.programs / "next").write_text(state)

    def calls(self) -> list[str]:
        """Return what systemctl was asked since the last call, but for states."""
        calls = self.programs / "calls"
        lines = calls.read_text().splitlines()
        calls.unlink()
        return [line.removeprefix("--user ") for line in lines if " show " not in line]

    @property
    def files(self) -> dict[str, Path]:
        return {path.name: path for path in self.home.rglob("*") if path.is_file()}

    @property
    def arguments(self) -> list[str]:
        arguments: list[str] = json.loads(self.files["service.json"].read_bytes())["arguments"]
        return arguments


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "home", tmp_path / "bin")
    machine.home.mkdir()
    machine.programs.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
        (machine.programs / name).write_text(text)
        (machine.programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine.programs}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(Systemd, "check", lambda _: None)
    monkeypatch.setattr(status, "probe", lambda _: ("ready", True))
    machine.next("active 11")
    return machine


STARTED = [
    "daemon-reload",
    "enable penstock.socket penstock.service",
    "reset-failed penstock.socket penstock.service",
    "start penstock.socket",
    "restart --no-block penstock.service",
]
"""The sockets first; the service alone is restarted, without waiting for it."""
STOPPED = "disable --now penstock.socket penstock.service"


@pytest.mark.slow
def test_a_service_is_installed_restarted_changed_and_removed(machine: Machine) -> None:
    """Another process answers after each; other addresses are listened on only after a stop."""
    said = machine.done("install", "--", "--port", "8000", PENSTOCK_API_KEY=KEY)
    assert said.endswith("ready      http://127.0.0.1:8000\n")
    assert machine.calls() == STARTED
    files = machine.files
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in files.items()}
    assert modes == {
        **{"environment": 0o600, "service.json": 0o600},
        **{"penstock.service": 0o644, "penstock.socket": 0o644},
    }
    assert [name for name, path in files.items() if KEY in path.read_text()] == ["environment"]
    assert stat.S_IMODE(files["environment"].parent.stat().st_mode) == 0o700
    again = machine.penstock("install", "--", "--port", "8000")
    assert "penstock service restart -- ARGUMENTS" in str(again.exception)
    before = {name: path.read_text() for name, path in files.items()}

    machine.next("active 12")
    machine.done("restart")
    assert {name: path.read_text() for name, path in machine.files.items()} == before
    machine.next("active 13")
    machine.done("restart", "--", "--port", "8000", "--max-slots", "4")
    assert machine.arguments[2:] == ["--max-slots", "4"]
    assert machine.calls() == [*STARTED, *STARTED]

    machine.next("active 14")
    files["environment"].write_text("PENSTOCK_API_KEY=changed\n")
    assert machine.done("restart", "--", "--port", "9000").endswith("http://127.0.0.1:9000\n")
    assert machine.calls() == [STOPPED, *STARTED]
    assert "ListenStream=127.0.0.1:9000" in files["penstock.socket"].read_text()
    assert files["environment"].read_text() == "PENSTOCK_API_KEY=changed\n"
    service, restarts, process, program, *rest = machine.done("status").splitlines()
    assert (service, restarts) == ("service    penstock: active (running)", "restarts   1")
    assert process.startswith("process    14, up")
    assert program.startswith("program    /")
    assert rest == [
        "arguments  --port 9000",
        "ready      ready, at http://127.0.0.1:9000",
        "memory     3.2 GB, of all its processes",
    ]

    logs = machine.home / "Library/Logs/penstock"
    logs.mkdir(parents=True)
    for name in ("penstock.log", "penstock.log.1", "penstock-2.log"):
        (logs / name).touch()
    machine.done("uninstall")
    assert machine.calls() == [STOPPED, "daemon-reload"]
    assert set(machine.files) == {"environment", "penstock-2.log"}, "a name that is longer is another's"
    machine.done("install", "--", "--port", "8000", PENSTOCK_API_KEY="new")
    assert files["environment"].read_text() == "PENSTOCK_API_KEY=changed\n"
    machine.done("uninstall", "--remove")
    assert set(machine.files) == {"penstock-2.log"}
    assert not files["environment"].parent.parent.exists()


@pytest.mark.slow
def test_an_engine_has_no_sockets_and_is_ready_when_it_runs(machine: Machine) -> None:
    said = machine.done("install", "--engine", "--", "--join", "mac-1:9100", PENSTOCK_JOIN_TOKEN="a token")
    assert said.endswith("runs       its server says whether it has joined\n")
    assert machine.calls() == [
        "daemon-reload",
        "enable penstock.service",
        "reset-failed penstock.service",
        "restart --no-block penstock.service",
    ]
    assert set(machine.files) == {"environment", "service.json", "penstock.service"}
    shown = json.loads(machine.done("status", "--json"))
    assert (shown["is_ready"], shown["url"], shown["manager"]["pid"]) == (True, None, 11)


@pytest.mark.slow
def test_a_restart_that_fails_says_what_the_log_does(machine: Machine) -> None:
    """Nothing is written where an option is refused."""
    machine.done("install", "--", "--port", "8000")
    refused = machine.penstock("restart", "--", "--max-slots", "none")
    assert refused.exit_code != 0
    assert machine.arguments == ["--port", "8000"]
    machine.next("failed 0")
    failed = machine.penstock("restart")
    assert isinstance(failed.exception, OperatorError)
    assert "it is failed (running) (penstock: the model has no weights)" in str(failed.exception)


def test_print_shows_all_files_writes_none_and_hides_values(machine: Machine) -> None:
    """Only variables of `serve` and of models go there: another command's is an unknown option of `serve`."""
    variables = {"PENSTOCK_API_KEY": KEY, "PENSTOCK_URL": "x", "HF_TOKEN": "t", "SECRET": "s"}
    shown = machine.done("install", "--print", "--", "--port", "8123", **variables)
    assert "ExecStart=" in shown
    assert "ListenStream=127.0.0.1:8123" in shown
    assert [line for line in shown.splitlines() if line.endswith("=...") and line[0] != "#"] == [
        "HF_TOKEN=...",
        "PENSTOCK_API_KEY=...",
    ]
    assert KEY not in shown
    assert list(machine.home.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--", "--max-slots", "none"), "--max-slots"),
        (("--", "--api-key", "k"), "environment file"),
        (("--", "--port", "0"), "--port 0"),
        (("--", "--prot", "8000"), "--prot"),
        (("--system",), "--run-as"),
        (("--run-as", "ann"), "--system"),
        (("--memory-max", "1KiB"), "at least 1MiB"),
        (("--memory-max", "much"), "--memory-max"),
        (("--name", "../etc"), "no name of a service"),
        (("--engine", "--", "--join", "mac-1:9100"), "PENSTOCK_JOIN_TOKEN"),
        (("--engine", "--", "--token-file", "token"), "--join"),
    ],
)
def test_what_is_wrong_is_refused_by_name_before_anything_is_written(
    machine: Machine, arguments: tuple[str, ...], said: str
) -> None:
    refused = machine.penstock("install", *arguments)
    assert isinstance(refused.exception, (OperatorError, OptionError, SystemExit))
    assert refused.exit_code != 0
    assert said in f"{refused.output}{refused.exception}"
    assert list(machine.home.iterdir()) == []


def test_launchd_bounds_no_memory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    refused = machine.penstock("install", "--memory-max", "8GiB")
    assert "--memory-limit" in str(refused.exception)


def test_a_folder_that_cannot_be_written_is_named(machine: Machine) -> None:
    (machine.home / "conf").write_text("a file")
    refused = machine.penstock("install")
    assert f"cannot write {machine.home}/conf/penstock/services/penstock/environment" in str(
        refused.exception
    )


@pytest.mark.parametrize("command", ["status", "restart", "uninstall"])
def test_a_service_that_is_not_there_is_said_to_be_none(machine: Machine, command: str) -> None:
    refused = machine.penstock(command)
    assert refused.exit_code == 1
    assert isinstance(refused.exception, OperatorError)
    assert "penstock service install" in str(refused.exception)


def test_without_systemd_nothing_is_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda _: None)
    refused = machine.penstock("logs")
    assert "systemd does not run on this machine" in str(refused.exception)
