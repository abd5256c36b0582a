"""`penstock service` on a machine with systemd: what it writes, and asks of a stand-in for `systemctl`."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from api.cli.errors import OperatorError
from api.cli.service import Service, _lines, addresses_of, plist, quoted, service, units
from api.options.options import load
from scheduler.errors import OptionError

KEY = "a-key-that-no-folder-is-named-after"
SETTINGS = load({"drain_seconds": "90"})


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

    def calls(self) -> list[str]:
        """Return what systemctl was asked since the last call."""
        calls = self.programs / "calls"
        lines = calls.read_text().splitlines()
        calls.unlink()
        return [line.removeprefix("--user ") for line in lines]

    @property
    def files(self) -> dict[str, Path]:
        return {path.name: path for path in self.home.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "home", tmp_path / "bin")
    machine.home.mkdir()
    machine.programs.mkdir()
    program = machine.programs / "systemctl"
    program.write_text('#!/bin/sh\necho "$@" >> "${0%/*}/calls"\ncase "$*" in *" status "*) exit 3 ;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine.programs}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.platform", "linux")
    return machine


STARTED = ["daemon-reload", "enable penstock.socket penstock.service"]
STOPPED = "stop penstock.socket penstock.service"
RESTARTED = "restart penstock.service"


@pytest.mark.slow
def test_a_service_is_installed_changed_and_removed(machine: Machine) -> None:
    """Other addresses are listened on only after a stop; keys are in a file that nobody else reads."""
    machine.done("install", "--", "--port", "8000", PENSTOCK_API_KEY=KEY)
    assert machine.calls() == [*STARTED, RESTARTED]
    files = machine.files
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in files.items()}
    assert modes == {"penstock.env": 0o600, "penstock.service": 0o644, "penstock.socket": 0o644}
    assert [name for name, path in files.items() if KEY in path.read_text()] == ["penstock.env"]
    machine.done("install", "--", "--port", "8000", "--max-slots", "4", PENSTOCK_API_KEY="another")
    assert machine.calls() == [*STARTED, RESTARTED]
    assert "--max-slots 4" in files["penstock.service"].read_text()
    assert KEY in files["penstock.env"].read_text(), "it is the operator's, once it is there"
    files["penstock.env"].write_text("PENSTOCK_PORT=9000\n")
    machine.done("install")
    assert machine.calls() == [*STARTED, STOPPED, RESTARTED]
    assert "ListenStream=127.0.0.1:9000" in files["penstock.socket"].read_text()
    assert machine.penstock("status").exit_code == 3
    assert machine.calls() == ["--no-pager status penstock.service"]
    assert "kept" in machine.done("uninstall")
    assert machine.calls() == ["disable --now penstock.socket penstock.service", "daemon-reload"]
    assert set(machine.files) == {"penstock.env"}


def test_an_engine_has_no_sockets(machine: Machine) -> None:
    """It comes back whenever its link has ended, and reports nothing to systemd."""
    machine.done("install", "--engine", "--", "--join", "mac-1:9100", PENSTOCK_JOIN_TOKEN="a token")
    assert machine.calls() == ["daemon-reload", "enable penstock.service", RESTARTED]
    unit = machine.files["penstock.service"].read_text()
    assert "\nType=exec\nRestart=always\n" in unit
    assert "engine --join mac-1:9100\n" in unit
    assert "Requires" not in unit


def test_print_shows_all_files_writes_none_and_hides_values(machine: Machine) -> None:
    """Only variables of `serve` and of models go there."""
    variables = {"PENSTOCK_API_KEY": KEY, "PENSTOCK_URL": "x", "HF_TOKEN": "t", "SECRET": "s"}
    shown = machine.done("install", "--print", "--", "--port", "8123", **variables)
    assert "ListenStream=127.0.0.1:8123" in shown
    assert [line for line in shown.splitlines() if line.endswith('="..."')] == [
        'HF_TOKEN="..."',
        'PENSTOCK_API_KEY="..."',
    ]
    assert KEY not in shown
    assert list(machine.home.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--", "--max-slots", "none"), "--max-slots"),
        (("--", "--api-key", "k"), "PENSTOCK_API_KEY"),
        (("--", "--port", "0"), "--port 0"),
        (("--", "--prot", "8000"), "--prot"),
        (("--", "--model", "a\nb"), "line break"),
        (("--system",), "sudo"),
        (("--name", "../etc"), "no name of a service"),
        (("--engine", "--", "--token-file", "token"), "--join"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    machine: Machine, arguments: tuple[str, ...], said: str
) -> None:
    refused = machine.penstock("install", *arguments)
    assert isinstance(refused.exception, (OperatorError, OptionError, SystemExit))
    assert refused.exit_code != 0
    assert said in f"{refused.output}{refused.exception}"
    assert list(machine.home.iterdir()) == []


def test_what_cannot_be_asked_or_written_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.home / "conf").write_text("a file")
    assert f"cannot write {machine.home}/conf" in str(machine.penstock("install").exception)
    monkeypatch.setenv("PATH", "")
    assert "LISTEN_FDS" in str(machine.penstock("status").exception)


@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])))
@settings(deadline=None)
def test_a_word_is_read_back_as_it_was(word: str) -> None:
    """By systemd's rules: quotes, backslashes, %% for a specifier's sign and $$ for a variable's."""
    text = quoted(word)
    if text.startswith('"'):
        assert text.endswith('"')
        text = text[1:-1]
        assert '"' not in text.replace("\\\\", "").replace('\\"', "")
        text = text.replace("\\\\", "\0").replace('\\"', '"').replace("\\t", "\t").replace("\0", "\\")
    else:
        assert not set(word) & set(" \t\"'\\%$;#")
    assert text.replace("%%", "%").replace("$$", "$") == word


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])))
@settings(deadline=None)
def test_a_variable_is_read_back_as_it_was(value: str) -> None:
    (line,) = shlex.split(_lines({"NAME": value}), comments=True)
    assert line == f"NAME={value}"


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("system", [False, True])
def test_systemd_takes_the_units(
    engine: bool, system: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word on service and socket: an unknown setting is a warning there. It waits longer than the
    drain may take."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    monkeypatch.setenv("SUDO_USER", "root")
    monkeypatch.setattr("sys.platform", "linux")
    written = units(Service("penstock", system), None if engine else SETTINGS, ['a b%h "$HOME" \\ \'é'])
    for path, text in written.items():
        (tmp_path / path.name).write_text(text)
    unit = (tmp_path / "penstock.service").read_text()
    assert engine or "TimeoutStopSec=105" in unit
    assert ("User=root" in unit) is system
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *([] if system else ["--user"])]
        + [str(tmp_path / path.name) for path in written],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "penstock" in line]) == (0, [])


def test_systemd_gets_addresses_and_no_names() -> None:
    for host, address in (("0.0.0.0", "0.0.0.0:80"), ("::", "[::]:80"), ("127.0.0.1", "127.0.0.1:80")):
        assert addresses_of(load({"host": host, "port": "80"})) == [address]
    with pytest.raises(OperatorError, match=r"no\.such\.host\.invalid"):
        addresses_of(load({"host": "no.such.host.invalid"}))


@pytest.mark.parametrize("system", [False, True])
def test_launchds_file_is_a_plist(system: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr("sys.platform", "darwin")
    library = "/Library" if system else "/home/ann/Library"
    ((path, text),) = plist(Service("penstock", system), SETTINGS, ["--port", "80"], {"A": "b"}).items()
    assert path == Path(library, f"Launch{'Daemons' if system else 'Agents'}", "penstock.penstock.plist")
    found = plistlib.loads(text.encode())
    log = f"{library}/Logs/penstock/penstock"
    assert found["ProgramArguments"][-5:] == ["service", "run", f"{log}.log", "--port", "80"]
    assert found["EnvironmentVariables"] == {"A": "b"}
    assert found["StandardErrorPath"] == f"{log}.crash.log"
    assert (found["KeepAlive"], found["ExitTimeOut"]) == ({"SuccessfulExit": False}, 105)
    assert ("UserName" in found, "LimitLoadToSessionType" in found) == (system, not system)
    ((_, engine),) = plist(Service("penstock", system), None, [], {}).items()
    assert plistlib.loads(engine.encode())["KeepAlive"] is True
