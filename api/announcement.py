"""The lines for the operator: when an engine can take requests, where, and what to type next. All else that
a start has to say is in the log."""

from __future__ import annotations

import json
import re
import shlex
import socket
import sys
from pathlib import Path

import click

from api.served_models import ServedModels
from api.typed_command import typed
from scheduler.models.embedded_model import EMBEDDED_NAME

_DEFAULT_URL = "http://127.0.0.1:8000"


async def announce(models: ServedModels, url: str, log: Path | None, *, has_keys: bool) -> None:
    """Print where it listens, and commands to type next; `log` if it is a file. Raise StartupError if no
    model can be loaded."""
    await models.fleet.wait_started()
    end_stages()
    for model in models.fleet:
        if model.reason is not None:
            click.echo(f"model      {model.name}: {model.reason}")
    if log is not None:
        click.echo(f"log        {log}")
    click.echo(f"listening  {url}")
    click.echo(f"page       {opened(url)}/")
    _, first = next(iter(models))
    if first.kind == "chat":
        key = "PENSTOCK_API_KEY=KEY " if has_keys else ""
        click.echo(f"chat       {key}{typed()} chat{'' if url == _DEFAULT_URL else f' --url {url}'}")
        question = "What is Penstock?" if first.name == EMBEDDED_NAME else "What is the capital of France?"
        click.echo(f"try        {_tried(url, question, has_keys=has_keys)}")


def opened(url: str) -> str:
    """Return an address that another machine's browser can open, also of a listener on all addresses."""
    return re.sub(r"//(0\.0\.0\.0|\[::\]):", f"//{socket.gethostname()}:", url)


def show_stage(text: str) -> None:
    """Show how far a load is, where somebody looks: in one line, which the next one replaces."""
    _show(f"loading    {text}")


def end_stages() -> None:
    """Make room for the next line."""
    _show("")


def show_ready(whose: str) -> None:
    """Show that an engine that had ended serves again."""
    _show(f"ready      {whose}the engine serves again\n")


def _show(text: str) -> None:
    if sys.stdout.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False)


def _tried(url: str, question: str, *, has_keys: bool) -> str:
    """Return a command for a shell that asks the server something, and prints the answer's text."""
    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 200, "temperature": 0}
    key = ' -H "authorization: Bearer $PENSTOCK_API_KEY"' if has_keys else ""
    body = shlex.quote(json.dumps(asked, separators=(",", ":")))
    shown = 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])'
    return (
        f"curl -s {url}/v1/chat/completions -H 'content-type: application/json'{key} -d {body}"
        f" | python3 -c {shlex.quote(shown)}"
    )
