"""`penstock batch`: its options, its progress, and how it ends."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
import httpx
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from api.cli.batch.lines import Answers, Line, body_of, pending
from api.cli.batch.sending import Sending
from api.cli.running_server import RunningServer, address, client, find, server_options
from api.cli.terminal import ENDING, exit_code, one_line
from scheduler.request import PRIORITIES

_TIMEOUT = httpx.Timeout(None, connect=10.0)
"""An answer may wait for hours behind other requests, and other servers send nothing meanwhile."""
_SHOWN_SECONDS = 0.25
_WHY_COLUMNS = 60


@click.command()
@click.argument("source", metavar="IN.jsonl", type=click.File("rb"))
@click.argument("target", metavar="OUT.jsonl", type=click.Path(path_type=Path, dir_okay=False))
@server_options
@click.option("--model", metavar="NAME", help="Model to ask, whatever the requests name.")
@click.pass_context
def batch(
    ctx: click.Context,
    source: BinaryIO,
    target: Path,
    url: str | None,
    api_key: str | None,
    model: str | None,
) -> None:
    """Send a file of requests, one a line as OpenAI's batches have them, and write their answers.

    Requests with a common beginning go one after another, as many at once as the server has room for;
    Penstock serves them behind all others. Ended at any moment, the same command goes on where it was: each
    request is answered once. Refused requests have their error in OUT.jsonl, and are not sent again.
    """
    where = address(url, api_key, os.environ)
    server = find(where)
    if model is not None:
        server.model(model)
    with closing(Answers(target)) as answers:
        lines = pending(source, answers.answered)
        done = len(answers.answered)
        click.echo(f"{len(lines)} requests to send, {done} answered already", err=True)
        statuses, ended_by, gave_up = trio.run(_run, source, lines, answers, server, model, done)
    refused = statuses.total() - statuses[200]
    click.echo(f"{statuses.total()} answered, of them {refused} refused", err=True)
    if ended_by is not None or gave_up:
        click.echo(
            f"{gave_up}{'; ' if gave_up else ''}the same command goes on where this one ended", err=True
        )
    ctx.exit(exit_code(ended_by) if ended_by is not None else 1 if refused or gave_up else 0)


async def _run(
    source: BinaryIO,
    lines: list[Line],
    answers: Answers,
    server: RunningServer,
    model: str | None,
    done: int,
) -> tuple[Counter[int], signal.Signals | None, str]:
    """Return how many answers had each status, and the signal or the reason that ended the run early."""
    statuses: Counter[int] = Counter()
    ended_by: signal.Signals | None = None

    def asked(line: Line) -> dict[str, Any]:
        body = body_of(source, line)
        named = {"model": model or body.get("model") or server.model(None).name}
        behind = {"priority": PRIORITIES[-1]} if server.is_penstock and "priority" not in body else {}
        return body | named | behind

    def answered(line: Line, answer: httpx.Response) -> None:
        statuses[answer.status_code] += 1
        answers.append(_entry(line, answer))

    async with client(server.address, _TIMEOUT) as http:
        sending = Sending(http, server.address, asked, answered)
        async with trio.open_nursery() as nursery:

            async def end_at_a_signal(task_status: trio.TaskStatus[None]) -> None:
                nonlocal ended_by
                with trio.open_signal_receiver(*ENDING) as signals:
                    task_status.started()
                    ended_by = signal.Signals(await anext(signals))
                    nursery.cancel_scope.cancel()

            await nursery.start(end_at_a_signal)
            with _progress(done, done + len(lines)) as shown:
                nursery.start_soon(_show, shown, sending, statuses, done)
                await sending.run(lines)
                shown.update(shown.task_ids[0], completed=done + statuses.total(), state="")
            nursery.cancel_scope.cancel()
    return statuses, ended_by, sending.gave_up


def _entry(line: Line, answer: httpx.Response) -> dict[str, Any]:
    """Return the line of OUT.jsonl, as OpenAI's."""
    try:
        body = answer.json()
    except ValueError:
        body = {"error": {"message": answer.text}}
    request_id = answer.headers.get("x-request-id")
    response = {"status_code": answer.status_code, "request_id": request_id, "body": body}
    return {"id": request_id, "custom_id": line.custom_id, "response": response, "error": None}


@contextmanager
def _progress(done: int, total: int) -> Iterator[Progress]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=Console(stderr=True)) as shown:
        shown.add_task("", total=total, completed=done, state="")
        yield shown


async def _show(shown: Progress, sending: Sending, statuses: Counter[int], done: int) -> None:
    while True:
        state = sending.waits_for or f"{sending.in_flight} of {int(sending.at_once)} at once"
        completed = done + statuses.total()
        shown.update(shown.task_ids[0], completed=completed, state=one_line(state, _WHY_COLUMNS))
        await trio.sleep(_SHOWN_SECONDS)
