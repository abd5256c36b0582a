"""An option or a command of another server is answered with what it is here."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from api.cli.command_line import penstock
from api.options.options import options
from api.options.other_servers import COMMANDS_HERE, HERE, explained

OURS = {flag for option in options() for flag in option.flags}


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--enable-prefix-caching"], "--enable-prefix-caching is another server's: it is always on here"),
        (["--tensor-parallel-size=2"], "a model fits one device here"),
        (["--max-num-seqs", "4", "-ngl", "99"], "-ngl is another server's: there is no such choice here"),
        (["--kv_bits", "8"], "--kv-bits is another server's: it is --kv-cache-dtype here"),
        (["--nonsense"], "No such option '--nonsense'"),
        (["--nonsense", "--jinja"], "--jinja"),
    ],
)
def test_what_it_is_here(arguments: list[str], answer: str) -> None:
    result = CliRunner().invoke(penstock, ["serve", "embedded", *arguments])
    assert result.exit_code == 2
    assert answer in result.output


def test_no_option_is_both() -> None:
    assert not OURS & set(HERE)
    assert explained(["serve", *OURS]) is None


def test_what_is_recommended_exists() -> None:
    named = {flag for here in HERE.values() for flag in re.findall(r"--[a-z-]+[a-z]", here)}
    assert named
    assert named <= OURS


def test_every_option_of_mlx_lm_s_server_is_known() -> None:
    """Those who come from there type them first; a later release may have more."""
    found = set(_arguments_of("mlx_lm.server"))
    assert len(found) > 20
    assert found <= OURS | set(HERE)


def test_commands_are_what_the_book_says() -> None:
    """Each is one here under its own name, or explained; and what is recommended exists."""
    page = (Path(__file__).parents[3] / "docs" / "from-other-servers.md").read_text()
    rows = [re.findall(r"\| `(?:ollama|penstock) ([^|]+)`", row) for row in page.splitlines()]
    pairs = [
        pair
        for theirs, ours in (row for row in rows if len(row) == 2)
        for pair in zip(theirs.split("`, `"), ours.split("`, `"), strict=True)
    ]
    assert ("list", "models") in pairs
    own = {*penstock.list_commands(click.Context(penstock))}
    for theirs, ours in ((theirs.split()[0], ours.split()[0]) for theirs, ours in pairs):
        assert theirs == ours if theirs in own else f"`penstock {ours}`" in COMMANDS_HERE[theirs]
    assert not own & {*COMMANDS_HERE}
    assert {*re.findall(r"`penstock ([a-z]+)", str(COMMANDS_HERE))} <= own


def _arguments_of(module: str) -> Iterator[str]:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(name)), *_]):
                yield name
