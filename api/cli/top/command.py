"""`penstock top`: its options, and the terminal that it draws on."""

from __future__ import annotations

import os
import signal
import sys

import click
import trio
from rich.console import Console
from rich.live import Live

from api.cli.errors import OperatorError
from api.cli.running_server import address, find, server_options
from api.cli.terminal import ENDING, exit_code, unechoed
from api.cli.top.following import Following, Lost, first_snapshot
from api.cli.top.screen import frame

_PIPE_COLUMNS = 80


@click.command()
@server_options
@click.option("--model", metavar="NAME", help="Model to show, of several.  [default: the first one]")
@click.option("--once", is_flag=True, help="Print one frame as text and end; so does a pipe.")
@click.option("--json", "as_json", is_flag=True, help="Print one snapshot as JSON and end.")
def top(url: str | None, api_key: str | None, model: str | None, once: bool, as_json: bool) -> None:
    """Show what a Penstock server does now: slots, queue, tenants, cache and rates.

    It reads the stream of the live page, which takes an operator's key where the server has keys. It waits
    for a server that goes away. Keys: q ends, m shows the next model.
    """
    if once and as_json:
        raise click.UsageError("--once and --json exclude each other")
    where = address(url, api_key, os.environ)
    find(where).need_penstock("top")
    following = Following(where, model)
    if as_json:
        click.echo(trio.run(first_snapshot, where, model))
    elif once or not sys.stdout.isatty():
        _print_once(following)
    elif (number := trio.run(_show, following)) is not None:
        sys.exit(exit_code(number))


def _print_once(following: Following) -> None:
    try:
        view = trio.run(following.once)
    except Lost as lost:
        raise OperatorError(str(lost)) from lost
    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    console.print(frame(view, console.width))


async def _show(following: Following) -> int | None:
    """Draw until the key `q` or a signal such as Ctrl-C's. Return the signal's number, or None."""
    console = Console()
    ended_by: int | None = None
    with (
        unechoed(sys.stdin.fileno(), by_key=True),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as screen,
        trio.open_signal_receiver(*ENDING, signal.SIGWINCH) as signals,
    ):

        def draw() -> None:
            screen.update(frame(following.view, console.width, console.height - 1), refresh=True)

        async with trio.open_nursery() as nursery:

            async def obey_signals() -> None:
                nonlocal ended_by
                async for number in signals:
                    if number in ENDING:
                        ended_by = number
                        nursery.cancel_scope.cancel()
                        return
                    draw()

            async def obey_keys() -> None:
                while True:
                    await trio.lowlevel.wait_readable(sys.stdin)
                    keys = os.read(sys.stdin.fileno(), 64)
                    if not keys or b"q" in keys or b"\x04" in keys:
                        nursery.cancel_scope.cancel()
                        return
                    if b"m" in keys:
                        following.show_next_model()

            async def draw_changes() -> None:
                while True:
                    draw()
                    await following.changed.wait()
                    following.changed = trio.Event()

            for task in (following.run, obey_signals, draw_changes):
                nursery.start_soon(task)
            if sys.stdin.isatty():
                nursery.start_soon(obey_keys)
    return ended_by
