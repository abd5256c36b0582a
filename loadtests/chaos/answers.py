"""Ask one question and record everything that the client received."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio

from api.cli.event_lines import EventLines
from loadtests.chaos.questions import Question

LEAST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Pause:
    """A silence of a stream, on trio's clock, after `deltas` events with words in them."""

    began: float
    ended: float
    deltas: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(slots=True)
class Answer:
    """One answer. It is whole if it has a finish reason and its stream an end mark."""

    text: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)
    """Names and arguments, assembled from the stream."""
    finish_reason: str | None = None
    output_tokens: int | None = None
    ended: bool = False
    status: int | None = None
    error: str | None = None
    """The error's code, or what happened to the connection."""
    disorder: str | None = None
    """A protocol violation: an event after the end, or one that came twice."""
    longest_pause_seconds: float = 0.0
    deltas: int = 0
    """Events with words in them."""
    pauses: list[Pause] = field(default_factory=list)
    """Silences of LEAST_PAUSE_SECONDS or more; none before its first words, when it may wait in the queue."""
    first_words: Pause | None = None
    """The silence before them, of a stream."""

    @property
    def outcome(self) -> tuple[object, ...]:
        """Return what must be equal with and without engine deaths."""
        calls = tuple(self.calls)
        return (self.text, self.reasoning, calls, self.finish_reason, self.output_tokens, self.error)

    @property
    def under_way(self) -> bool:
        """Return whether its first words have arrived and its end has not."""
        return self.deltas > 0 and self.finish_reason is None and self.error is None

    @property
    def whole(self) -> bool:
        """Return whether the answer came to its end without an error."""
        return self.ended and self.error is None

    def take(self, chunk: dict[str, Any]) -> None:
        """Take one event of a stream, or a whole answer."""
        if chunk.get("error") is not None:
            self.error = str(chunk["error"].get("code") or chunk["error"])
            return
        if chunk.get("usage"):
            self.output_tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or {}
            if self.finish_reason is not None:
                self.disorder = "an event after the finish reason"
            self.deltas += any(delta.get(kind) for kind in ("content", "reasoning_content", "tool_calls"))
            self.text += delta.get("content") or ""
            self.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                if function.get("name"):
                    self.calls.append(function["name"] + " ")
                self.calls[-1] += function.get("arguments") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason


async def ask(http: httpx.AsyncClient, url: str, question: Question, answer: Answer | None = None) -> Answer:
    """Send the question, and return the answer. Raise nothing, whatever the server does. `answer` is an empty
    one to record into, for a caller that watches it arrive."""
    answer, asked = answer or Answer(), trio.current_time()
    try:
        async with http.stream("POST", f"{url}/v1/chat/completions", json=question.body) as response:
            answer.status = response.status_code
            if question.streamed and response.status_code == 200:
                await _follow(response, answer, asked)
            else:
                answer.take(json.loads(await response.aread()))
                answer.ended = True
    except (httpx.HTTPError, ValueError) as error:
        answer.error = repr(error)
    return answer


async def _follow(response: httpx.Response, answer: Answer, asked: float) -> None:
    events, last = EventLines(), trio.current_time()
    async for data in response.aiter_bytes():
        for payload in events.data(data):
            now = trio.current_time()
            answer.longest_pause_seconds = max(answer.longest_pause_seconds, now - last)
            if now - last >= LEAST_PAUSE_SECONDS and answer.deltas:
                answer.pauses.append(Pause(last, now, answer.deltas))
            last = now
            if answer.ended:
                answer.disorder = "an event after the end mark"
            if payload == b"[DONE]":
                answer.ended = True
            else:
                answer.take(json.loads(payload))
            if answer.deltas and answer.first_words is None:
                answer.first_words = Pause(asked, now, 0)
