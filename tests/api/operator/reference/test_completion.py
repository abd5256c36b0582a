"""Completion in real shells, on a tree of two commands, and on the whole of ours in bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from api.command_line import penstock
from api.operator.reference.command_tree import Command, Option, tree
from api.operator.reference.completion import script
from api.operator.reference.man_page import page

SMALL = Command(
    "penstock",
    ("penstock",),
    "Serve: it's a server.",
    "COMMAND ...",
    (Option(("-h", "--help"), "", "Show help."),),
    (
        Command(
            "serve",
            ("penstock", "serve"),
            "Serve a model: to one's clients. And more.",
            "",
            (
                Option(("--engine",), "mlx|scripted", "Which.", ("mlx", "scripted")),
                Option(("--kv-disk",), "VALUE", "Folder.", (), True),
                Option(("--seed",), "N", "Number; of $(nothing)."),
                Option(("--eager",), "", "A flag."),
            ),
        ),
        Command("bench", ("penstock", "bench"), "Measure.", "", (), (), ("fast", "slow")),
    ),
)


def in_bash(text: str, *words: str, folder: Path = Path("/")) -> list[str]:
    """Return what bash offers for the last word."""
    program = (
        f"{text}\nCOMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _penstock;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-u", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=folder,
    )
    assert done.stderr == ""
    return done.stdout.split()


def in_fish(text: str, line: str) -> list[str]:
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"{text}\ncomplete -C {line!r}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return [row.split("\t")[0] for row in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("penstock", ""), ["serve", "bench", "-h", "--help"]),
        (("penstock", "se"), ["serve"]),
        (("penstock", "serve", "--e"), ["--engine", "--eager"]),
        (("penstock", "serve", "--engine", ""), ["mlx", "scripted"]),
        (("penstock", "serve", "--engine", "s"), ["scripted"]),
        (("penstock", "serve", "--seed", ""), []),
        (("penstock", "serve", "--seed", "1", "--ea"), ["--eager"]),
        (("penstock", "bench", ""), ["fast", "slow"]),
        (("penstock", "--help", "serve", "--kv"), ["--kv-disk"]),
    ],
)
def test_bash_offers_what_fits(words: tuple[str, ...], offered: list[str]) -> None:
    assert in_bash(script(SMALL, "bash"), *words) == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_what_fits() -> None:
    text = script(SMALL, "fish")
    assert in_fish(text, "penstock s") == ["serve"]
    assert in_fish(text, "penstock serve --e") == ["--eager", "--engine"]
    assert in_fish(text, "penstock serve --engine ") == ["mlx", "scripted"]
    assert in_fish(text, "penstock bench ") == ["fast", "slow"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_offers_what_fits() -> None:
    """Its own functions are stood in for: they draw menus, and need a terminal."""
    program = f"""
    compdef() {{ }}; _describe() {{ print -l -- "${{(@P)2}}" }}; compadd() {{ shift; print -l -- "$@" }}
    {script(SMALL, "zsh")}
    try() {{ words=("$@"); CURRENT=$#; _penstock; print END }}
    try penstock ''; try penstock serve --engine ''; try penstock serve ''
    """
    done = subprocess.run(
        ["zsh", "-f", "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    first, values, options, _ = done.stdout.split("END\n")
    assert first.splitlines()[:2] == ["serve:Serve a model: to one's clients", "bench:Measure"]
    assert values.splitlines() == ["mlx", "scripted"]
    assert [line.split(":")[0] for line in options.splitlines()] == [
        "--engine",
        "--kv-disk",
        "--seed",
        "--eager",
    ]


@pytest.fixture(scope="module")
def ours() -> Command:
    return tree(penstock)


def test_all_commands_are_found(ours: Command) -> None:
    names = {" ".join(one.path[1:]) for one in ours.walk()}
    assert {"serve", "bench", "bench compare", "completion", "man"} <= names


def test_every_command_of_ours_is_completed(ours: Command) -> None:
    text = script(ours, "bash")
    assert {"serve", "bench", "man"} <= set(in_bash(text, "penstock", ""))
    assert in_bash(text, "penstock", "serve", "--engine", "") == ["mlx", "scripted"]
    assert "--max-slots" in in_bash(text, "penstock", "serve", "--max")
    assert in_bash(text, "penstock", "completion", "")[:3] == ["bash", "fish", "zsh"]
    assert "compare" in in_bash(text, "penstock", "bench", "comp")


def test_folders_are_known_as_folders(ours: Command) -> None:
    serve = next(one for one in ours.commands if one.name == "serve")
    assert {"--model", "--models", "--kv-disk", "--cache", "--api-keys-file"} <= {
        option.flags[0] for option in serve.options if option.is_path
    }


def test_the_manual_page_names_every_option(ours: Command) -> None:
    text = page(ours, "1.2.3").replace("\\-", "-")
    for one in ours.walk():
        assert one is ours or f".SS {' '.join(one.path)}" in text
        for option in one.options:
            assert all(f"\\fB{flag}\\fR" in text for flag in option.flags)


def test_the_manual_page_is_roff() -> None:
    """No line of a text becomes a request, and no backslash an escape."""
    odd = Command("x", ("x",), ".Dotted \\n 'quoted'\n\n'again", "", (Option(("--a",), "V", ""),))
    text = page(Command("r", ("r",), "Root.", "", (), (odd,)), "1")
    assert "\n\\&.Dotted \\en" in text
    assert "\n\\&'again" in text
    requests = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".RI"}


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_it_in_80_columns(ours: Command, tmp_path: Path) -> None:
    (tmp_path / "penstock.1").write_text(page(ours, "1.2.3"))
    shown = subprocess.run(
        ["man", str(tmp_path / "penstock.1")],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = shown.stdout.splitlines()
    assert "penstock - Continuous batching for language models on Apple MLX" in shown.stdout
    assert len(lines) > 300
    assert max(map(len, lines)) <= 100, "words that cannot be broken stand out"
