"""What is written for systemd and launchd, and what is refused before anything is written."""

from __future__ import annotations

import plistlib
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.cli.errors import OperatorError
from api.cli.service.serve_arguments import addresses_of
from api.cli.service.service_options import (
    Platform,
    ServiceFiles,
    ServiceOptions,
    places_of,
)
from api.cli.service.units import plist, quoted, socket_text, unit_text
from api.options.options import load

USER = ServiceOptions(
    program=("/usr/bin/env",),
    arguments=("--model", "a/b", "--port", "8000"),
    addresses=("127.0.0.1:8000", "[::1]:8000"),
    platform=Platform.SYSTEMD,
)
SYSTEM = replace(USER, system=True, run_as="root", memory_max_bytes=8 << 30, drain_seconds=90.0)
AGENT = replace(USER, platform=Platform.LAUNCHD)


def places(options: ServiceOptions) -> ServiceFiles:
    environment = {"HOME": "/home/ann"}
    return places_of(options.name, options.platform, system=options.system, environment=environment)


def settings_of(options: ServiceOptions) -> dict[str, str]:
    lines = unit_text(options).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_a_unit_starts_what_is_recorded() -> None:
    """No argument is in it, whatever it is: the service reads its own record."""
    found = settings_of(USER)
    assert shlex.split(found["ExecStart"]) == ["/usr/bin/env", "service", "run", "--name", "penstock"]
    assert unit_text(replace(USER, arguments=("--model", "a\nExecStartPre=/bin/rm"))) == unit_text(USER)
    assert (found["Type"], found["KillMode"], found["Restart"]) == ("notify", "mixed", "on-failure")
    assert found["WantedBy"] == "default.target"
    assert "MemoryMax" not in found
    assert "User" not in found


def test_an_engines_unit_waits_for_its_server_without_end() -> None:
    """It has no sockets, reports nothing to systemd, and comes back whenever its link has ended."""
    engine = replace(USER, engine=True, arguments=("--join", "mac-1:9100"), addresses=())
    found = settings_of(engine)
    assert (found["Type"], found["Restart"], found["StartLimitIntervalSec"]) == ("exec", "always", "0")
    assert {"WatchdogSec", "Requires", "NotifyAccess"}.isdisjoint(found)


def test_an_engines_property_list_keeps_it_alive() -> None:
    found = plistlib.loads(plist(replace(AGENT, engine=True), places(AGENT)).encode())
    assert found["KeepAlive"] is True


def test_a_systems_unit_has_its_user_and_its_bounds() -> None:
    """systemd kills no drain: it waits longer than the drain may take."""
    found = settings_of(SYSTEM)
    assert "--system" in found["ExecStart"]
    assert (found["User"], found["WantedBy"]) == ("root", "multi-user.target")
    assert (found["MemoryMax"], found["TimeoutStopSec"]) == (str(8 << 30), "105")


@pytest.mark.parametrize(
    "options", [USER, SYSTEM, replace(USER, engine=True)], ids=["user", "system", "engine"]
)
def test_systemd_takes_the_unit(options: ServiceOptions, tmp_path: Path) -> None:
    """Without a word on service and socket: an unknown setting is a warning there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    strange = replace(options, program=("/usr/bin/env", 'a b%h "$HOME" \\ \'é'))
    unit = tmp_path / "penstock.service"
    unit.write_text(unit_text(strange))
    listening = tmp_path / "penstock.socket"
    listening.write_text(socket_text(strange))
    done = subprocess.run(
        [
            "systemd-analyze",
            "verify",
            "--man=no",
            *([] if options.system else ["--user"]),
            str(unit),
            str(listening),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "penstock" in line]) == (0, [])


@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])))
@settings(deadline=None, derandomize=True)
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


def test_the_sockets_stay_while_the_service_restarts() -> None:
    """They are a unit of their own, which comes first: one for each address."""
    lines = socket_text(USER).splitlines()
    assert [line for line in lines if line.startswith("ListenStream=")] == [
        "ListenStream=127.0.0.1:8000",
        "ListenStream=[::1]:8000",
    ]
    assert "FreeBind=yes" not in lines
    assert "FreeBind=yes" in socket_text(SYSTEM).splitlines()
    found = settings_of(USER)
    assert (found["Requires"], found["After"]) == ("penstock.socket", "penstock.socket")
    assert places(USER).socket == Path("/home/ann/.config/systemd/user/penstock.socket")


@pytest.mark.parametrize(
    ("options", "addresses"),
    [
        ({"host": "0.0.0.0", "port": "80"}, {"0.0.0.0:80"}),
        ({"host": "::", "port": "80"}, {"[::]:80"}),
        ({"host": "127.0.0.1", "metrics_port": "9000"}, {"127.0.0.1:8000", "127.0.0.1:9000"}),
    ],
)
def test_systemd_gets_addresses_and_no_names(options: dict[str, str], addresses: set[str]) -> None:
    assert set(addresses_of(load(options))) == addresses
    assert "127.0.0.1:8000" in addresses_of(load({"host": "localhost"}))
    with pytest.raises(OperatorError, match=r"no\.such\.host\.invalid"):
        addresses_of(load({"host": "no.such.host.invalid"}))


def test_launchds_file_is_a_plist() -> None:
    found: dict[str, Any] = plistlib.loads(plist(AGENT, places(AGENT)).encode())
    folder = "/home/ann/Library"
    assert found["Label"] == "penstock.penstock"
    assert found["ProgramArguments"] == [
        *("/usr/bin/env", "service", "run", "--name", "penstock"),
    ]
    assert found["StandardErrorPath"] == f"{folder}/Logs/penstock/penstock.crash.log"
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["ExitTimeOut"] == 45
    assert found["LimitLoadToSessionType"] == ["Aqua", "Background"]
    assert str(places(AGENT).unit) == f"{folder}/LaunchAgents/penstock.penstock.plist"


def test_a_daemon_has_its_user() -> None:
    daemon = replace(AGENT, system=True, run_as="ann")
    found = plistlib.loads(plist(daemon, places(daemon)).encode())
    assert found["UserName"] == "ann"
    assert "LimitLoadToSessionType" not in found
    assert places(daemon).unit == Path("/Library/LaunchDaemons/penstock.penstock.plist")
