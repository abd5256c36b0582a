"""One streamed answer to a chat completion: the part received so far, and its figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api.cli.event_lines import EndlessLine, EventLines

_SHORTEST_SECONDS = 0.05
"""Shortest time over which a rate means something."""


@dataclass(slots=True)
class ReceivedCall:
    """A tool call. `arguments` is JSON if the model wrote valid JSON."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedUsage:
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """The cached part of the prompt, or None if the server does not report it."""


@dataclass(slots=True)
class Answer:
    """An answer while it is received. Times are seconds on one clock."""

    sent_at: float
    waiting: str = "sent"
    """The server's last comment on a request that has no token yet: `queued 3`, `prefill 512/2000`."""
    most_pieces: int | None = None
    """A bound on pieces of text, thinking and calls, which the client holds itself, or None."""
    text: list[str] = field(default_factory=list)
    """Pieces, as they came."""
    thinking: list[str] = field(default_factory=list)
    calls: dict[int, ReceivedCall] = field(default_factory=dict)
    stamps: list[float] = field(default_factory=list)
    """Times at which pieces of text, thinking or calls came."""
    usage: ReceivedUsage | None = None
    ended: str | None = None
    """The finish reason: `stop`, `length`, `tool_calls`; None until it came."""
    failure: str | None = None
    """Why the answer failed: an error of the server or of the connection. None if it has not failed."""
    stopped_by: int | None = None
    """Number of the signal by which the user stopped the answer, or None."""
    is_over: bool = False
    """Whether the stream has ended or failed, so that nothing follows."""
    _lines: EventLines = field(default_factory=EventLines)

    @property
    def is_whole(self) -> bool:
        return self.ended is not None and self.failure is None

    def feed(self, data: bytes, now: float) -> None:
        """Take a piece of the body, which may be cut anywhere. Skip fields and lines that are unknown."""
        try:
            for name, value in self._lines.feed(data):
                if name == b"data":
                    self.take(value, now)
                elif name == b":" and value and not self.is_over:
                    self.waiting = value.decode("utf-8", "replace")
        except EndlessLine:
            self._fail("a line without end")

    def take(self, payload: bytes, now: float) -> None:
        """Take the data of one event."""
        if self.is_over:
            return
        if payload == b"[DONE]":
            self.is_over = True
            return
        text = payload.decode("utf-8", "replace")
        try:
            chunk = json.loads(text)
        except ValueError:
            self._fail(f"an event that is not JSON: {text[:80]}")
            return
        if isinstance(chunk, dict):
            self._take_chunk(chunk, now)

    def _take_chunk(self, chunk: Mapping[str, Any], now: float) -> None:
        if error := chunk.get("error"):
            message = error.get("message") if isinstance(error, dict) else None
            self._fail(str(message or error))
        for choice in _objects(chunk.get("choices"))[:1]:
            if isinstance(delta := choice.get("delta"), dict):
                self._take_delta(delta, now)
            if isinstance(reason := choice.get("finish_reason"), str):
                marks = choice.get("penstock")
                self.ended = "repetition" if isinstance(marks, dict) and marks.get("repetition") else reason
        if self.ended is None and self.most_pieces is not None and len(self.stamps) >= self.most_pieces:
            # The connection is closed then, upon which the server cancels the request.
            self.ended, self.is_over = "length", True
        if isinstance(usage := chunk.get("usage"), dict):
            cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
            counts = _count(usage, "prompt_tokens") or 0, _count(usage, "completion_tokens") or 0
            self.usage = ReceivedUsage(*counts, cached)

    def _take_delta(self, delta: Mapping[str, Any], now: float) -> None:
        # vLLM's newer versions and OpenRouter leave out `_content`.
        for names, pieces in ((("reasoning_content", "reasoning"), self.thinking), (("content",), self.text)):
            texts = [text for name in names if isinstance(text := delta.get(name), str) and text]
            self.stamps += [now] * len(texts[:1])
            pieces += texts[:1]
        for number, piece in enumerate(_objects(delta.get("tool_calls"))):
            index, function = piece.get("index"), piece.get("function")
            function = function if isinstance(function, dict) else {}
            call = self.calls.setdefault(index if isinstance(index, int) else number, ReceivedCall())
            call.call_id = call.call_id or str(piece.get("id") or "")
            call.name = call.name or str(function.get("name") or "")
            call.arguments += str(function.get("arguments") or "")
            self.stamps.append(now)

    def _fail(self, message: str) -> None:
        self.failure, self.is_over = self.failure or message, True

    def figures(self) -> str:
        """Return the line below an answer: tokens, rate, time to first token, cached share."""
        counted = None if self.usage is None else self.usage.output_tokens
        tokens = len(self.stamps) if counted is None else counted
        # A piece is not always a token.
        parts = [f"{'' if counted is not None else 'about '}{tokens:,} token{'s' * (tokens != 1)}"]
        if self.stamps:
            elapsed = self.stamps[-1] - self.stamps[0]
            if tokens > 1 and elapsed >= _SHORTEST_SECONDS:
                parts.append(f"{(tokens - 1) / elapsed:.1f} tokens/s")
            parts.append(f"first after {seconds(self.stamps[0] - self.sent_at)}")
        if (usage := self.usage) is not None and usage.prompt_tokens:
            prompt = f"prompt {usage.prompt_tokens:,}"
            if usage.cached_tokens is not None:
                prompt += f", {100 * usage.cached_tokens // usage.prompt_tokens}% cached"
            parts.append(prompt)
        return " · ".join(parts)

    def remark(self) -> str | None:
        """Return a remark on an answer that did not end by itself, or None."""
        if self.failure is not None:
            return self.failure
        if self.stopped_by is not None:
            return "stopped"
        match self.ended:
            case None:
                return "the server ended the answer without saying why"
            case "length":
                return "cut: the answer has as many tokens as allowed (/set max_tokens N allows more)"
            case "repetition":
                return "ended: the answer repeated itself"
            case "stop" | "tool_calls":
                return None
            case other:
                return f"ended: {other}"


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(holder: Any, name: str) -> int | None:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


_COMMENT = re.compile(r"queued (?P<ahead>\d+)(, waits for: (?P<why>.+))?|prefill (?P<done>\d+)/(?P<all>\d+)")


def in_words(comment: str) -> str:
    """Return what a request waits for, of the server's comment on it."""
    if (found := _COMMENT.fullmatch(comment)) is None:
        return "waiting for the server" if comment == "sent" else comment
    if found["done"] is not None:
        return f"reading the prompt: {int(found['done']):,} of {int(found['all']):,} tokens"
    ahead = int(found["ahead"])
    place = f"{ahead:,} request{'s' * (ahead != 1)} ahead" if ahead else "next in line"
    why = found["why"]
    return f"in the queue, {place}{f'; waits for: {why}' if why else ''}"


def seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
