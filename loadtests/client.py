"""One chat completion as its client experiences it: sent, streamed, timestamped.

Nothing is ever retried: what a target refuses or drops counts as its users would see it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import httpx
import trio

from api.cli.event_lines import EventLines
from loadtests.record import Outcome

MakeClient: TypeAlias = Callable[[], httpx.AsyncClient]
_DETAIL_CHARACTERS = 300


def default_client(silence_seconds: float) -> MakeClient:
    """Make HTTP clients with a read timeout. They share one TLS context: making one costs 20 ms of processor
    time."""
    context = ssl.create_default_context()
    timeout = httpx.Timeout(silence_seconds, connect=10.0, pool=None)
    limits = httpx.Limits(max_connections=None)
    return lambda: httpx.AsyncClient(timeout=timeout, limits=limits, verify=context, trust_env=False)


@dataclass(slots=True)
class Answer:
    """What has come, also of a request that is under way or was cancelled. Times are trio's clock."""

    sent_at: float = 0.0
    ended_at: float = 0.0
    status: int | None = None
    outcome: Outcome = Outcome.UNFINISHED
    detail: str = ""
    """The server's error, or what happened to the connection."""
    text: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)
    """Names and arguments, assembled from the stream."""
    stamps: list[float] = field(default_factory=list)
    """When pieces of text, reasoning or calls came."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    is_over: bool = False
    """Whether the stream's end mark, or an error, has come."""
    disorder: str = ""
    """A protocol violation: an event after the end, or one that came twice."""

    @property
    def whole(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def substance(self) -> tuple[object, ...]:
        """Return what must be equal for equal questions."""
        return (
            self.text,
            self.reasoning,
            tuple(self.calls),
            self.finish_reason,
            self.output_tokens,
            self.whole,
        )

    def end(self, outcome: Outcome, detail: str = "") -> None:
        self.outcome, self.detail = outcome, detail[:_DETAIL_CHARACTERS]

    def take(self, payload: bytes, now: float) -> None:
        """Take the data of one event, or a whole answer. Skip fields that are unknown."""
        if self.is_over:
            # Behind an error servers send an end mark, too.
            self.disorder = "" if self.outcome is Outcome.STREAM_ERROR else "an event after the end"
            return
        if payload == b"[DONE]":
            self.is_over = True
            return
        try:
            chunk = json.loads(payload)
        except ValueError:
            self._fail(f"an event that is not JSON: {payload[:80].decode('utf-8', 'replace')}")
            return
        if not isinstance(chunk, dict):
            return
        if error := chunk.get("error"):
            self._fail(error_text(error))
        for choice in _objects(chunk.get("choices"))[:1]:
            if self.finish_reason is not None:
                self.disorder = "an event after the finish reason"
            if isinstance(delta := choice.get("delta") or choice.get("message"), dict):
                self._take_delta(delta, now)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if answers := _objects(chunk.get("answers")):
            self.text, self.finish_reason = f"{len(answers)} answers", "stop"
            self.stamps.append(now)
        if isinstance(usage := chunk.get("usage"), dict):
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
            self.prompt_tokens = _count(usage, "prompt_tokens") or _count(usage, "input_tokens") or 0
            self.output_tokens = _count(usage, "completion_tokens") or 0
            self.cached_tokens = _count(details, "cached_tokens")

    def _take_delta(self, delta: Mapping[str, Any], now: float) -> None:
        # vLLM's newer versions and OpenRouter leave out `_content`.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        text, calls = delta.get("content"), _objects(delta.get("tool_calls"))
        if isinstance(text, str) and text:
            self.text += text
            self.stamps.append(now)
        if isinstance(thought, str) and thought:
            self.reasoning += thought
            self.stamps.append(now)
        for call in calls:
            self.stamps.append(now)
            function = call.get("function") or {}
            if function.get("name") or not self.calls:
                self.calls.append(f"{function.get('name')} ")
            self.calls[-1] += function.get("arguments") or ""

    def _fail(self, message: str) -> None:
        self.is_over = True
        self.end(Outcome.STREAM_ERROR, message)


async def ask(
    http: httpx.AsyncClient,
    url: str,
    body: dict[str, Any],
    answer: Answer,
    headers: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> Answer:
    """Send `body` to `url` and follow the answer to its end, into the caller's record, so that a cancelled
    request keeps what it received. `seconds` bound the whole. Raise nothing but cancellation."""
    answer.sent_at = trio.current_time()
    try:
        with trio.move_on_after(float("inf") if seconds is None else seconds) as scope:
            async with http.stream("POST", url, json=body, headers=headers) as response:
                answer.status = response.status_code
                await _follow(response, answer)
        if scope.cancelled_caught:
            answer.end(Outcome.TIMED_OUT, f"not answered within {seconds:g} s")
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        answer.end(Outcome.CONNECT_FAILED, repr(error))
    except httpx.TimeoutException as error:
        answer.end(Outcome.TIMED_OUT, repr(error))
    except httpx.TransportError as error:
        # To a client, a connection that was reset before any answer was never made.
        answer.end(Outcome.CONNECT_FAILED if answer.status is None else Outcome.CUT, repr(error))
    finally:
        answer.ended_at = trio.current_time()
    return answer


async def _follow(response: httpx.Response, answer: Answer) -> None:
    if response.status_code != 200:
        text = (await response.aread()).decode("utf-8", "replace")
        refused = response.status_code in (429, 503)
        answer.end(Outcome.REFUSED if refused else Outcome.HTTP_ERROR, text)
    elif "text/event-stream" not in response.headers.get("content-type", "text/event-stream"):
        answer.take(await response.aread(), trio.current_time())
        _close(answer)
    else:
        events = EventLines()
        # httpx declares an iterator, but returns a generator that must be closed.
        async with aclosing(cast(AsyncGenerator[bytes, None], response.aiter_bytes())) as coming:
            async for data in coming:
                for payload in events.data(data):
                    answer.take(payload, trio.current_time())
        _close(answer)


def _close(answer: Answer) -> None:
    if answer.outcome is Outcome.UNFINISHED:
        # Some servers omit the end mark; a finish reason shows that the answer is whole.
        whole = answer.is_over or answer.finish_reason is not None
        answer.end(Outcome.OK if whole else Outcome.CUT, "" if whole else "no end mark")


def error_text(error: Any) -> str:
    """Return an error's code and message, or whatever it is."""
    if not isinstance(error, dict):
        return str(error)
    return ": ".join(str(error[name]) for name in ("code", "message") if error.get(name)) or str(error)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(holder: Any, name: str) -> int | None:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and value >= 0 else None
