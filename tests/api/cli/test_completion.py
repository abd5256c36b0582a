"""What a shell offers at a key press, by click's own completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from click.testing import CliRunner

from api.cli.command_line import penstock


def offered(line: str) -> list[CompletionItem]:
    """Return what completes the last word of a line behind `penstock`."""
    *words, incomplete = line.split(" ")
    return ShellComplete(penstock, {}, "penstock", "_PENSTOCK_COMPLETE").get_completions(words, incomplete)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ser", {"serve", "service"}),
        ("serve --engine ", {"mlx", "scripted"}),
        ("serve --engine s", {"scripted"}),
        ("serve --max-sl", {"--max-slots"}),
        ("serve --max-slots ", set()),
        ("service un", {"uninstall"}),
        ("bench comp", {"compare"}),
        ("bench compare --rou", {"--rounds"}),
        ("--vers", {"--version"}),
    ],
)
def test_what_fits_is_offered(line: str, words: set[str]) -> None:
    """Commands, also those that another package registers; options; values that a field knows."""
    assert {item.value for item in offered(line)} == words


def test_commands_have_their_lines() -> None:
    assert [item.help for item in offered("doc")] == [
        "Say what this machine can serve, and what stands in the way."
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shells_script_asks_penstock(shell: str) -> None:
    done = CliRunner().invoke(penstock, ["completion", shell], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in done.output


def test_another_shell_is_refused_with_those_that_there_are() -> None:
    done = CliRunner().invoke(penstock, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.output


@pytest.mark.parametrize("option", ["--model", "--models", "--kv-disk", "--api-keys-file"])
def test_files_are_offered_where_an_option_takes_one(option: str) -> None:
    assert [item.type for item in offered(f"serve {option} ")] == ["file"]


def test_bash_completes() -> None:
    """With the script that is printed, which runs `penstock` at each key press."""
    program = """
    eval "$(penstock completion bash)"
    COMP_WORDS=(penstock se); COMP_CWORD=1; _penstock_completion penstock; printf '%s\\n' "${COMPREPLY[@]}"
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PATH": path},
    )
    assert done.stdout.split() == ["serve", "service"]
