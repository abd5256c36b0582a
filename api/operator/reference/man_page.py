"""`penstock man`: all commands and options on one manual page, made from the commands themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click

from api.operator.reference.command_tree import Command, Option, tree
from api.version import own_version


@click.command()
@click.pass_context
def man(ctx: click.Context) -> None:
    """Show all commands and options on one manual page.

    In a terminal by man(1), elsewhere its source: penstock man > penstock.1
    """
    text = page(tree(ctx.find_root().command), str(own_version()))
    program = shutil.which("man")
    if program is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(text, nl=False)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "penstock.1"
        file.write_text(text, encoding="utf-8")
        # A path with a slash is a file to both man-db's and macOS's.
        sys.exit(subprocess.run([program, str(file)], env=os.environ, check=False).returncode)


def page(root: Command, version: str) -> str:
    """Return the page in the man macros of roff."""
    return "\n".join(_lines(root, version)) + "\n"


def _lines(root: Command, version: str) -> Iterator[str]:
    yield f'.TH {root.name.upper()} 1 "" "{root.name} {_escaped(version)}" "User commands"'
    yield ".SH NAME"
    yield f"{root.name} \\- {_escaped(root.short_help)}"
    yield ".SH SYNOPSIS"
    yield from _usage(root)
    yield from _options(root.options)
    yield ".SH COMMANDS"
    for one in root.walk():
        if one is root:
            continue
        yield f".SS {_escaped(' '.join(one.path))}"
        yield from _usage(one)
        yield from _paragraphs(one.help)
        yield from _options(one.options)
    yield ".SH ENVIRONMENT"
    yield _escaped(
        f"Each option of {root.name} serve is also a variable: --max-slots is PENSTOCK_MAX_SLOTS."
        " The command line goes first. NO_COLOR turns colours off."
    )
    yield ".SH EXIT STATUS"
    for status, meaning in (
        (0, "done"),
        (1, "it could not be done"),
        (2, "an option or argument was refused"),
    ):
        yield ".TP"
        yield f".B {status}"
        yield meaning


def _usage(one: Command) -> Iterator[str]:
    yield ".PP"
    yield f".B {_escaped(' '.join(one.path))}"
    yield ".RI " + f'"[options] {_escaped(one.arguments)}"'.replace(' "', '"')


def _paragraphs(help_: str) -> Iterator[str]:
    for paragraph in help_.split("\n\n"):
        if paragraph.strip():
            yield ".PP"
            yield _escaped(" ".join(paragraph.split()))


def _options(options: tuple[Option, ...]) -> Iterator[str]:
    for group, found in groupby(options, key=lambda option: option.group):
        if group:
            yield ".PP"
            yield f".B {_escaped(group)}"
        for option in found:
            yield ".TP"
            names = ", ".join(f"\\fB{_escaped(flag)}\\fR" for flag in option.flags)
            yield f"{names} \\fI{_escaped(option.metavar)}\\fR" if option.metavar else names
            yield _escaped(option.help) or "\\&"


def _escaped(text: str) -> str:
    """Return text that roff takes as text: a line that begins with a dot or a quote would be a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ").replace('"', "\\(dq")
    return f"\\&{text}" if text[:1] in (".", "'") else text
