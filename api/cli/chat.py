"""`penstock chat`: a conversation line by line, or one answer through a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from contextlib import closing, suppress
from typing import Any

import click
import httpx

from api.cli.errors import OperatorError
from api.cli.event_lines import EndlessLine, EventLines
from api.cli.running_server import FAILURES, RunningServer, address, find, refusal, server_options, trouble
from api.cli.terminal import end_cleanly_when_terminated, printable

_TIMEOUT = httpx.Timeout(600.0, connect=5.0, write=60.0)
"""Long, because servers other than Penstock may be silent while a request waits."""
_CUT = "the answer is cut: it has as many tokens as allowed (--max-tokens)"


@click.command()
@click.argument("words", metavar="[QUESTION]", nargs=-1)
@server_options
@click.option("--model", metavar="NAME", help="Model to ask.")
@click.option("--system", metavar="TEXT", default="", help="System message.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Most tokens of an answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), metavar="T", help="0 to 2.")
def chat(
    words: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    model: str | None,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Chat with a model, on the terminal or in a pipe.

    Any OpenAI-compatible server will do.

    With a QUESTION, or without a terminal as standard input, only the answer is written to standard output:
    `echo question | penstock chat`. With both, the question is about the input.
    """
    end_cleanly_when_terminated()
    question = _question(" ".join(words))
    server = find(address(url, api_key, os.environ))
    given = {"max_tokens": max_tokens, "temperature": temperature}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    body["model"] = server.model(model).name
    if question:
        _answer(server, body, [*messages, {"role": "user", "content": question}], goes_on=False)
        return
    with suppress(ImportError):
        import readline  # noqa: F401 (keys that edit the line, and earlier ones)
    click.secho(f"{printable(body['model'])} at {server.url}; Ctrl-D ends", dim=True)
    with suppress(EOFError):
        while True:
            if not (line := input("> ").strip()):
                continue
            messages.append({"role": "user", "content": line})
            if text := _answer(server, body, messages, goes_on=True):
                messages.append({"role": "assistant", "content": text})
            else:
                messages.pop()


def _question(words: str) -> str:
    """Return the argument, followed by standard input if that is no terminal; empty for a conversation. Raise
    click's UsageError."""
    try:
        piped = "" if sys.stdin.isatty() else sys.stdin.read()
        asked = "\n\n".join(filter(None, (words.strip(), piped.strip())))
        asked.encode()
    except UnicodeError as error:
        raise click.UsageError("the question is not text (UTF-8)") from error
    if not asked and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("there is no question: give one as an argument or on standard input")
    return asked


def _answer(
    server: RunningServer, body: dict[str, Any], messages: list[dict[str, str]], *, goes_on: bool
) -> str:
    """Write the answer while it comes, and return what came. Raise OperatorError if it fails, and
    KeyboardInterrupt, unless the conversation `goes_on`."""
    # The model's text must not control a terminal; a file gets what the model wrote.
    text, is_terminal = "", sys.stdout.isatty()
    remark = ""
    try:
        with closing(stream(server, {**body, "messages": messages})) as pieces:
            for kind, piece in pieces:
                if kind == "end":
                    remark = {"stop": "", "length": _CUT}.get(piece, f"the answer ended: {piece}")
                    break
                text += piece if kind == "text" else ""
                if is_terminal:
                    shown = printable(piece)
                    click.echo(click.style(shown, dim=True) if kind == "thought" else shown, nl=False)
                elif kind == "text":
                    click.echo(piece.encode("utf-8", "replace"), nl=False)
        if is_terminal or not text.endswith("\n"):
            click.echo()
    except BrokenPipeError:
        # The reader has left. The interpreter flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, OperatorError) as error:
        if is_terminal or text:
            click.echo()
        if not goes_on:
            raise
        remark = str(error) or "stopped"
    if remark:
        click.echo(f"penstock: {remark}", err=True)
    return text


def stream(
    server: RunningServer, body: dict[str, Any], transport: httpx.BaseTransport | None = None
) -> Generator[tuple[str, str], None, None]:
    """Yield `text` or `thought` with what came, then `end` with the finish reason. Closed early, the server
    cancels the request. Raise OperatorError."""
    where, events = server.address, EventLines()
    url = f"{server.url}/v1/chat/completions"
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, trust_env=where.trust_env, transport=transport) as http,
            http.stream("POST", url, json={**body, "stream": True}, headers=where.headers) as response,
        ):
            if response.status_code != 200:
                raise OperatorError(refusal(response.status_code, response.read()))
            for payload in (one for data in response.iter_bytes() for one in events.data(data)):
                chunk = {} if payload == b"[DONE]" else json.loads(payload)
                if error := chunk.get("error"):
                    raise OperatorError(str(error.get("message") if isinstance(error, dict) else error))
                for choice in (chunk.get("choices") or [])[:1]:
                    delta = choice.get("delta") or {}
                    # vLLM's newer versions leave out `_content`.
                    if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                        yield "thought", thought
                    if text := delta.get("content"):
                        yield "text", text
                    if reason := choice.get("finish_reason"):
                        yield "end", reason
                        return
    except FAILURES as error:
        raise OperatorError(trouble(where, error)) from error
    except (ValueError, AttributeError, TypeError, EndlessLine) as error:
        raise OperatorError(f"{server.url} sent what is no chat completion: {error}") from error
    raise OperatorError(f"{server.url} closed the connection in mid-answer")
