"""How a command ends: by Ctrl-C, wherever it comes, and with the errors of commands within commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from api.announcement import opened
from api.cli.command_line import penstock
from api.typed_command import typed, with_typed

STAGES = {
    "bench scenarios": "loadtests.scenario.shipped",
    "chat hello": "api.cli.chat.address",
    "models": "api.cli.models.listing.disk_models.find",
}
"""Where a command's work begins."""


@pytest.mark.parametrize("command", STAGES)
@pytest.mark.parametrize("raised", [KeyboardInterrupt(), BaseExceptionGroup("", [KeyboardInterrupt()])])
def test_ctrl_c_ends_each_command_without_a_word(
    command: str, raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """130, as shells have it; click would say "Aborted!" and 1. In a nursery it comes in a group."""

    def interrupted(*_: object, **__: object) -> NoReturn:
        raise raised

    monkeypatch.setattr(STAGES[command], interrupted)
    ended = CliRunner().invoke(penstock, command.split())
    assert (ended.exit_code, ended.output) == (130, "")


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("bench dev chaos --help", 0, "Usage: penstock bench dev chaos [OPTIONS]"),
        ("bench compare --scenario no-such-scenario", 2, "no-such-scenario"),
    ],
)
def test_bench_has_exit_codes_of_its_own(command: str, code: int, words: str) -> None:
    """What tests Penstock itself is under `dev`."""
    ended = CliRunner().invoke(penstock, command.split())
    assert (ended.exit_code, words in ended.output) == (code, True), ended.output


def test_closed_standard_streams_are_empty_ones() -> None:
    """No traceback, and no descriptor of theirs is given to a file."""
    line = ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-m", "api", "chat"]
    ended = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no question" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("line", ["serv", "bench dev chas", "serve --max-slot 4", "show small --token 5"])
def test_what_is_unknown_is_refused_by_its_name(line: str) -> None:
    ended = CliRunner().invoke(penstock, line.split())
    assert ended.exit_code == 2
    assert f"No such {'option' if '--' in line else 'command'}" in ended.output


@pytest.mark.parametrize(
    ("started", "path", "typed_here"),
    [
        (".venv/bin/penstock", "/usr/bin", ".venv/bin/penstock"),
        ("{here}/.venv/bin/penstock", "/usr/bin", ".venv/bin/penstock"),
        ("{here}/.venv/bin/penstock", "{here}/.venv/bin", "penstock"),
        ("../other place/penstock", "/usr/bin", "'../other place/penstock'"),
        ("/elsewhere/api/__main__.py", "/usr/bin", "penstock"),
    ],
)
def test_commands_are_printed_as_they_can_be_typed(
    started: str, path: str, typed_here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `make serve` no PATH leads to the program."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "penstock").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path.format(here=tmp_path))
    monkeypatch.setattr("sys.argv", [started.format(here=tmp_path), "serve"])
    assert typed() == typed_here
    assert with_typed("`penstock serve` starts one") == f"`{typed_here} serve` starts one"


def test_the_page_of_all_addresses_opens_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "studio.local")
    assert opened("http://0.0.0.0:8000") == opened("http://[::]:8000") == "http://studio.local:8000"
    assert opened("http://127.0.0.1:8000") == "http://127.0.0.1:8000"
