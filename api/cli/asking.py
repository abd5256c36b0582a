"""Send a chat completion and follow its answer. A failure or Ctrl-C ends the answer, not the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import trio

from api.cli.answer import Answer
from api.cli.running_server import FAILURES, Address, client, pieces, refusal, trouble
from api.cli.terminal import ENDING

PATIENCE = httpx.Timeout(600.0, connect=5.0, write=60.0)
"""Long, because servers other than Penstock, which sends a comment every few seconds, may be silent while a
request waits."""
_REFUSAL_BYTES = 1 << 16
_REFUSAL_SECONDS = 10.0
_END_SECONDS = 1.0
"""Time that the server has to close the connection after the answer's end."""

_ASKS_PROGRESS = {"x-penstock-progress": "comments"}
"""Asks the server to say what it waits for."""


async def ask_until_interrupt(
    where: Address,
    body: dict[str, Any],
    answer: Answer,
    on_change: Callable[[], None],
    transport: httpx.AsyncBaseTransport | None = None,
) -> None:
    """Run `ask` in the main thread until it ends or a signal of `ENDING` stops it: `answer.stopped_by`."""
    async with trio.open_nursery() as nursery:

        async def stop_on_interrupt(task_status: trio.TaskStatus[None]) -> None:
            with trio.open_signal_receiver(*ENDING) as signals:
                task_status.started()
                answer.stopped_by = await anext(signals)
                nursery.cancel_scope.cancel()

        await nursery.start(stop_on_interrupt)
        async with client(where, PATIENCE, transport) as http:
            await ask(http, where, body, answer, on_change)
        nursery.cancel_scope.cancel()


async def ask(
    http: httpx.AsyncClient,
    where: Address,
    body: dict[str, Any],
    answer: Answer,
    on_change: Callable[[], None],
) -> None:
    """Fill `answer` until it ends or fails. If cancelled, close the connection, upon which the server cancels
    the request."""
    try:
        await _follow(http, where, body, answer, on_change)
    except FAILURES as error:
        answer.failure = trouble(where, error)


async def _follow(
    http: httpx.AsyncClient,
    where: Address,
    body: dict[str, Any],
    answer: Answer,
    on_change: Callable[[], None],
) -> None:
    url = f"{where.url}/v1/chat/completions"
    async with http.stream("POST", url, json=body, headers=_ASKS_PROGRESS) as response:
        # Read to the end, so that httpx's inner generators end too, but only until a deadline.
        with trio.CancelScope() as over:
            async with pieces(response) as coming:
                if response.status_code != 200:
                    refused = bytearray()
                    over.deadline = trio.current_time() + _REFUSAL_SECONDS
                    async for data in coming:
                        refused += data[: _REFUSAL_BYTES - len(refused)]
                    answer.failure = refusal(response.status_code, bytes(refused))
                    return
                async for data in coming:
                    answer.feed(data, trio.current_time())
                    if answer.is_over:
                        over.deadline = min(over.deadline, trio.current_time() + _END_SECONDS)
                    on_change()
    if answer.ended is None and answer.failure is None:
        answer.failure = f"{where.url} closed the connection in mid-answer"
