"""One request as its client experiences it: sent, streamed, timestamped, perhaps abandoned.

Nothing is ever retried: what a target refuses or drops counts as its users would see it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
import trio

from api.cli.event_lines import EventLines
from api.cli.running_server import pieces
from loadtests.answer import Answer
from loadtests.record import Outcome
from loadtests.workload import Ask

_DETAIL_CHARACTERS = 300


@dataclass(slots=True)
class Observed:
    """What the client saw. Times are trio's clock."""

    sent_at: float
    ended_at: float = 0.0
    status: int | None = None
    outcome: Outcome = Outcome.UNFINISHED
    detail: str = ""
    answer: Answer = field(default_factory=Answer)
    retry_after_seconds: float | None = None

    def end(self, outcome: Outcome, detail: str = "") -> None:
        self.outcome, self.detail = outcome, detail[:_DETAIL_CHARACTERS]


class _HangUp(Exception):
    """Raised when the scenario wants this client to disconnect."""


async def follow(
    client: httpx.AsyncClient,
    url: str,
    headers: dict[str, str],
    body: dict[str, Any],
    wish: Ask,
    observed: Observed,
) -> None:
    """Send `body` to `url` and follow the stream to its end, into the caller's record, so that a cancelled
    request keeps what it received. Raise nothing but cancellation."""
    patience = trio.CancelScope(
        deadline=trio.current_time() + wish.hang_up_after_seconds
        if wish.hang_up_after_seconds is not None
        else float("inf")
    )
    seconds = wish.timeout_seconds
    try:
        with trio.move_on_after(float("inf") if seconds is None else seconds) as whole, patience:
            await _exchange(client, url, headers, body, wish, observed, patience)
        if whole.cancelled_caught:
            observed.end(Outcome.TIMED_OUT, f"not answered within {seconds:g} s")
        elif patience.cancelled_caught:
            observed.end(Outcome.HUNG_UP, "while waiting")
    except _HangUp:
        observed.end(Outcome.HUNG_UP, f"after {len(observed.answer.stamps)} deltas")
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        observed.end(Outcome.CONNECT_FAILED, repr(error))
    except httpx.TimeoutException as error:
        observed.end(Outcome.TIMED_OUT, repr(error))
    except httpx.TransportError as error:
        # To a client, a connection that was reset before any answer was never made.
        outcome = Outcome.CONNECT_FAILED if observed.status is None else Outcome.CUT
        observed.end(outcome, repr(error))
    finally:
        observed.ended_at = trio.current_time()


async def _exchange(
    client: httpx.AsyncClient,
    url: str,
    headers: dict[str, str],
    body: dict[str, Any],
    wish: Ask,
    observed: Observed,
    patience: trio.CancelScope,
) -> None:
    async with client.stream("POST", url, json=body, headers=headers) as response:
        observed.status = response.status_code
        if response.status_code != 200:
            _refused(observed, response, (await response.aread()).decode("utf-8", "replace"))
            return
        events = EventLines()
        answer = observed.answer
        leave_after = float("inf") if wish.hang_up_after_deltas is None else wish.hang_up_after_deltas
        async with pieces(response) as coming:
            async for data in coming:
                now = trio.current_time()
                for payload in events.data(data):
                    answer.take(payload, now)
                    if answer.stamps:
                        patience.deadline = float("inf")
                    if len(answer.stamps) >= leave_after:
                        raise _HangUp
                if answer.failure is not None:
                    observed.end(Outcome.STREAM_ERROR, answer.failure)
                if wish.read_bytes_per_second is not None:
                    await trio.sleep(len(data) / wish.read_bytes_per_second)
    if observed.outcome is Outcome.UNFINISHED:
        # Some servers omit the end mark; a finish reason shows that the answer is whole.
        whole = answer.is_over or answer.ended is not None
        observed.end(Outcome.OK if whole else Outcome.CUT, "" if whole else "no end mark")


def _refused(observed: Observed, response: httpx.Response, text: str) -> None:
    observed.end(Outcome.REFUSED if response.status_code in (429, 503) else Outcome.HTTP_ERROR, text)
    retry_after = response.headers.get("retry-after", "")
    if retry_after.isdigit():
        observed.retry_after_seconds = float(retry_after)
