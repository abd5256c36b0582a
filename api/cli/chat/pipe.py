"""`penstock chat` in a pipe: one question, and nothing but its answer on standard output."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import Any, TextIO

import click
import httpx
import trio

from api.cli.answer import Answer
from api.cli.asking import ask_until_interrupt
from api.cli.errors import OperatorError
from api.cli.running_server import Address
from api.cli.terminal import exit_code, printable

MOST_CHARACTERS = 16 << 20
"""Bound on standard input: the longest body that a server takes by default."""

_SILENT_SECONDS = 1.0
"""How long standard input may be silent before a notice of it. Agents and services start commands with a pipe
that nobody writes to or closes; but `make | penstock chat "what failed?"` is silent for minutes, too."""


def begins(stdin: TextIO, seconds: float) -> bool:
    """Return whether standard input has begun or ended within this time."""
    try:
        return bool(select.select([stdin], [], [], seconds)[0])
    except (io.UnsupportedOperation, ValueError):
        return True  # It is no file.


def question(words: str, stdin: TextIO, begins: Callable[[TextIO, float], bool] = begins) -> str:
    """Return the question: the argument, standard input, or the argument followed by standard input. Raise
    click's UsageError if there is none, or standard input cannot be used."""
    _check_text(words, "the question")
    piped = ""
    if not stdin.isatty():
        if words.strip() and not begins(stdin, _SILENT_SECONDS):
            click.echo("penstock: waiting for standard input (`< /dev/null` asks without it)", err=True)
        try:
            piped = stdin.read(MOST_CHARACTERS + 1)
        except UnicodeDecodeError as error:
            raise click.UsageError(_NO_TEXT.format("standard input")) from error
        _check_text(piped, "standard input")
        if len(piped) > MOST_CHARACTERS:
            raise click.UsageError(f"standard input is longer than {MOST_CHARACTERS >> 20} MiB")
        if words.strip() and not piped.strip() and _is_from_somebody(stdin):
            click.echo("penstock: standard input is empty: the question is sent alone", err=True)
    asked = "\n\n".join(part for part in (words.strip(), piped.strip()) if part)
    if not asked:
        raise click.UsageError("there is no question: give one as an argument or on standard input")
    return asked


def _is_from_somebody(stdin: TextIO) -> bool:
    """Return whether standard input is a pipe, a socket or a file: not the null device, by which scripts say
    that there is none."""
    try:
        return not stat.S_ISCHR(os.fstat(stdin.fileno()).st_mode)
    except OSError:
        return False  # It is no file, or closed.


_NO_TEXT = "{} is not text (UTF-8)"


def _check_text(text: str, what: str) -> None:
    """Raise click's UsageError for bytes that are not UTF-8: in the C locale Python reads them as half
    characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(_NO_TEXT.format(what)) from error


def answer_once(
    where: Address,
    body: dict[str, Any],
    output: TextIO,
    transport: httpx.AsyncBaseTransport | None = None,
    most_pieces: int | None = None,
) -> None:
    """Write the answer while it comes. Raise OperatorError if it fails, SystemExit on a signal or if the
    reader of `output` has left."""
    # The model's text must not control a terminal; a file gets what the model wrote.
    shown = printable if output.isatty() else str
    answer = Answer(0.0, most_pieces=most_pieces)
    written = 0

    def write() -> None:
        nonlocal written
        for piece in answer.text[written:]:
            output.write(shown(piece))
        if len(answer.text) > written:
            output.flush()
        written = len(answer.text)

    is_read = True
    try:
        trio.run(ask_until_interrupt, where, body, answer, write, transport)
        if written and not answer.text[-1].endswith("\n"):
            output.write("\n")
            output.flush()
    except* BrokenPipeError:
        is_read = False
    if not is_read:
        # The interpreter flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        sys.exit(1)
    if answer.stopped_by is not None:
        sys.exit(exit_code(answer.stopped_by))
    for call in answer.calls.values():
        click.echo(
            f"penstock: tool call (not run): {printable(call.name)} {printable(call.arguments)}", err=True
        )
    if answer.failure is not None:
        raise OperatorError(answer.failure)
    if answer.ended == "length":
        more = "" if most_pieces is None else "; --max-tokens N allows more"
        click.echo(f"penstock: the answer is cut: it has as many tokens as allowed{more}", err=True)
    elif answer.ended == "repetition":
        click.echo("penstock: the answer repeated itself, and was ended", err=True)
