"""One answer while it is streamed: from the bytes of a chat completion to what a terminal shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

_MOST_LINE_BYTES = 64 << 20
_SHORTEST_SECONDS = 0.05
"""Over which a rate means something."""


@dataclass(frozen=True, slots=True)
class Call:
    call_id: str
    name: str
    arguments: str
    """JSON, if the model wrote it so."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model wrote in one turn."""

    text: str
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    is_whole: bool = True
    """False: the user or the server ended it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The server's word on a request that has no token yet: `queued 3`, `prefill 512/2000`."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A piece of a tool call. `name` and `call_id` come with the first one."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Counted:
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """None: the server does not say."""
    thinking_tokens: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The model has ended the answer: `stop`, `length`, `tool_calls`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The server has ended it."""

    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing follows."""


Event = Waiting | Thought | Said | Called | Counted | Ended | Failed | Done


class EventReader:
    """From pieces of a body, cut anywhere, to events. What no client can know is skipped."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of all lines that are complete now."""
        self._rest += data
        end = self._rest.rfind(b"\n")
        if end < 0:
            return [Failed("a line without end")] if len(self._rest) > _MOST_LINE_BYTES else []
        lines = bytes(self._rest[:end]).split(b"\n")
        del self._rest[: end + 1]
        return [event for line in lines for event in _events(line.decode("utf-8", "replace").strip("\r"))]


def _events(line: str) -> Iterator[Event]:
    if line.startswith(":"):
        if text := line[1:].strip():
            yield Waiting(text)
    elif line.startswith("data:"):
        data = line[5:].strip()
        if data == "[DONE]":
            yield Done()
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            yield Failed(f"an event that is not JSON: {data[:80]}")
            return
        if isinstance(chunk, dict):
            yield from _of_chunk(chunk)


def _of_chunk(chunk: Mapping[str, Any]) -> Iterator[Event]:
    if error := chunk.get("error"):
        message = error.get("message") if isinstance(error, dict) else None
        yield Failed(str(message or error))
    for choice in _objects(chunk.get("choices"))[:1]:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            yield from _of_delta(delta)
        if isinstance(reason := choice.get("finish_reason"), str):
            yield Ended(reason)
    if isinstance(usage := chunk.get("usage"), dict):
        yield Counted(
            _count(usage, "prompt_tokens") or 0,
            _count(usage, "completion_tokens") or 0,
            _count(usage.get("prompt_tokens_details"), "cached_tokens"),
            _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
        )


def _of_delta(delta: Mapping[str, Any]) -> Iterator[Event]:
    # vLLM's newer versions and OpenRouter leave out `_content`.
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := delta.get(name), str) and text:
            yield Thought(text)
            break
    if isinstance(text := delta.get("content"), str) and text:
        yield Said(text)
    for number, call in enumerate(_objects(delta.get("tool_calls"))):
        index, function = call.get("index"), call.get("function")
        function = function if isinstance(function, dict) else {}
        yield Called(
            index if isinstance(index, int) else number,
            str(call.get("id") or ""),
            str(function.get("name") or ""),
            str(function.get("arguments") or ""),
        )


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(holder: Any, name: str) -> int | None:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


@dataclass(slots=True)
class Answer:
    """What has come of one answer. Times are seconds of one clock; None: not yet."""

    sent_at: float
    waiting: str = "sent"
    text: list[str] = field(default_factory=list)
    """Pieces, as they came."""
    thinking: list[str] = field(default_factory=list)
    calls: dict[int, Call] = field(default_factory=dict)
    stamps: list[float] = field(default_factory=list)
    """When each piece of text, thinking or a call came."""
    thought_until: float | None = None
    """The first piece behind the thinking."""
    usage: Counted | None = None
    ended: str | None = None
    """The model's reason to end."""
    failure: str | None = None
    stopped_by: int | None = None
    """The signal by which the user wanted no more."""

    def take(self, event: Event, now: float) -> None:
        match event:
            case Waiting(text=text):
                self.waiting = text
            case Thought(text=text):
                self._piece(now)
                self.thinking.append(text)
            case Said(text=text):
                self._piece(now)
                self._end_thinking(now)
                self.text.append(text)
            case Called(index=index, call_id=call_id, name=name, arguments=arguments):
                self._piece(now)
                self._end_thinking(now)
                known = self.calls.get(index, Call("", "", ""))
                self.calls[index] = Call(
                    known.call_id or call_id, known.name or name, known.arguments + arguments
                )
            case Counted():
                self.usage = event
            case Ended(reason=reason):
                self.ended = reason
            case Failed(message=message):
                self.failure = self.failure or message
            case Done():
                pass
            case _:
                assert_never(event)

    def _piece(self, now: float) -> None:
        self.stamps.append(now)

    def _end_thinking(self, now: float) -> None:
        if self.thinking and self.thought_until is None:
            self.thought_until = now

    @property
    def is_whole(self) -> bool:
        return self.ended is not None and self.failure is None

    def reply(self) -> Reply | None:
        """Return what the conversation keeps; None: nothing that it could go on from. A call that was cut is
        left out: its arguments are no JSON."""
        calls = tuple(self.calls.values()) if self.is_whole else ()
        if not (self.text or calls):
            return None
        return Reply("".join(self.text), "".join(self.thinking), calls, self.is_whole)

    def thinking_seconds(self, now: float) -> float:
        if not self.stamps:
            return 0.0
        return (now if self.thought_until is None else self.thought_until) - self.stamps[0]

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
        """Return what is to be said of an answer that did not end by itself."""
        if self.failure is not None:
            return self.failure
        if self.stopped_by is not None:
            return "stopped"
        match self.ended:
            case None:
                return "the server ended the answer without saying why"
            case "length":
                return "cut: the answer has as many tokens as allowed (/set max_tokens)"
            case "stop" | "tool_calls":
                return None
            case other:
                return f"ended: {other}"


def seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
