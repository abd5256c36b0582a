"""Send a chat completion and follow its answer. A failure or Ctrl-C ends the answer, not the command."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

import httpx
import trio

from api.cli.answer import Answer
from api.cli.running_server import Address, reason, refusal
from api.cli.terminal import ENDING

_TIMEOUT = httpx.Timeout(600.0, connect=5.0, write=60.0)
"""Long, because servers other than Penstock, which sends a comment every few seconds, may be silent while a
request waits."""
_REFUSAL_BYTES = 1 << 16
_REFUSAL_SECONDS = 10.0
_END_SECONDS = 1.0
"""Time that the server has to close the connection after the answer's end."""


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
        async with client(where, transport) as http:
            await ask(http, where, body, answer, on_change)
        nursery.cancel_scope.cancel()


def client(where: Address, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=_TIMEOUT, trust_env=where.trust_env, transport=transport)


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
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        answer.failure = f"no server answers at {where.url}: {reason(error)}"
    except httpx.ReadTimeout:
        answer.failure = f"the server at {where.url} has been silent for 10 minutes"
    except (httpx.HTTPError, UnicodeError) as error:
        answer.failure = f"the connection to {where.url} was lost: {reason(error)}"


async def _follow(
    http: httpx.AsyncClient,
    where: Address,
    body: dict[str, Any],
    answer: Answer,
    on_change: Callable[[], None],
) -> None:
    url = f"{where.url}/v1/chat/completions"
    async with http.stream("POST", url, json=body, headers=where.headers) as response:
        # httpx declares an iterator, but returns a generator that must be closed.
        raw = cast(AsyncGenerator[bytes, None], response.aiter_bytes())
        # Read to the end, so that httpx's inner generators end too, but only until a deadline.
        with trio.CancelScope() as over:
            async with aclosing(raw) as pieces:
                if response.status_code != 200:
                    refused = bytearray()
                    over.deadline = trio.current_time() + _REFUSAL_SECONDS
                    async for data in pieces:
                        refused += data[: _REFUSAL_BYTES - len(refused)]
                    answer.failure = refusal(response.status_code, bytes(refused))
                    return
                async for data in pieces:
                    answer.feed(data, trio.current_time())
                    if answer.is_over:
                        over.deadline = min(over.deadline, trio.current_time() + _END_SECONDS)
                    on_change()
    if answer.ended is None and answer.failure is None:
        answer.failure = f"{where.url} closed the connection in mid-answer"
