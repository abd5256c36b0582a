"""`penstock chat`: its options, and whether it runs on the terminal or in a pipe."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from api.cli.chat.conversation import MOST_TOKENS, Conversation, read_tools
from api.cli.chat.pipe import answer_once, question
from api.cli.chat.session import Session, line_reader
from api.cli.running_server import address, server_options
from api.cli.started_server import found_or_started
from api.cli.terminal import end_cleanly_when_terminated, printable


def _text(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not text (UTF-8)") from error
    return value


def _tools(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> tuple[Any, ...]:
    if value is None:
        return ()
    try:
        return read_tools(value.read_text("utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{value} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{value} cannot be read: it is not text (UTF-8)") from error
    except ValueError as error:
        raise click.BadParameter(f"{value} {error}") from error


@click.command()
@click.argument("words", metavar="[QUESTION]", nargs=-1)
@server_options
@click.option(
    "--model", metavar="NAME", help="Model to ask; if a server is started for the chat, the model to serve."
)
@click.option("--system", metavar="TEXT", default="", callback=_text, help="System message.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Most tokens of an answer.  [default: {MOST_TOKENS}]",
)
@click.option("--temperature", type=click.FloatRange(0, 2), metavar="T", help="0 to 2.")
@click.option(
    "--tools",
    type=click.Path(path_type=Path),
    metavar="FILE",
    callback=_tools,
    help="Tools to offer, a JSON list as in OpenAI's API. Calls are shown, never run.",
)
def chat(
    words: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    model: str | None,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
    tools: tuple[Any, ...],
) -> None:
    """Chat with a model, on the terminal or in a pipe.

    Any OpenAI-compatible server will do. If none runs at the default address, Penstock starts one, which ends
    with the chat.

    With a QUESTION, or without a terminal as standard input, only the answer is written to standard output:
    `echo question | penstock chat`. With both, the question is about the input, which has 10 seconds to
    begin.
    """
    asked = question(" ".join(words), sys.stdin) if words or not sys.stdin.isatty() else None
    if asked is None and not sys.stdout.isatty():
        raise click.UsageError(
            "standard output is not a terminal: give a question as an argument or on standard input"
        )
    end_cleanly_when_terminated()
    where = address(url, api_key, os.environ)
    console = Console()
    given = {"max_tokens": max_tokens, "temperature": temperature}
    settings = {name: value for name, value in given.items() if value is not None}
    interrupted = False
    arguments = () if model is None else ("--model", model)
    with found_or_started(where, arguments, Console(stderr=True), os.environ) as server:
        is_own = server.url != where.url
        name = server.model(None if is_own else model).name
        conversation = Conversation(name, system, settings=settings, tools=tools)
        if asked is None:
            head = f"{name} at {server.url}{', started for this chat' if is_own else ''}"
            head += "\n/help lists the commands, Ctrl-D ends"
            console.print(Text(printable(head), style="dim"))
            session = Session(server, conversation, console)
            interrupted = session.run(line_reader(session.words, os.environ))
        else:
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
            body = conversation.ask(asked)
            answer_once(server.address, body, sys.stdout, most_pieces=conversation.most_pieces)
    if interrupted:
        raise KeyboardInterrupt
