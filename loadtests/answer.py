"""One streamed answer to a chat completion: what has come of it, and when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ReceivedUsage:
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """The cached part of the prompt, or None if the server does not report it."""


@dataclass(slots=True)
class Answer:
    """An answer while it is received."""

    text: list[str] = field(default_factory=list)
    """Pieces, as they came."""
    stamps: list[float] = field(default_factory=list)
    """Times at which pieces of text, thinking or calls came, in seconds."""
    usage: ReceivedUsage | None = None
    ended: str | None = None
    """The finish reason: `stop`, `length`, `tool_calls`; None until it came."""
    failure: str | None = None
    """The server's error, or None."""
    is_over: bool = False
    """Whether the stream has ended or failed, so that nothing follows."""

    def take(self, payload: bytes, now: float) -> None:
        """Take the data of one event. Skip fields that are unknown."""
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
                self.ended = reason
        if isinstance(usage := chunk.get("usage"), dict):
            cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
            counts = _count(usage, "prompt_tokens") or 0, _count(usage, "completion_tokens") or 0
            self.usage = ReceivedUsage(*counts, cached)

    def _take_delta(self, delta: Mapping[str, Any], now: float) -> None:
        # vLLM's newer versions and OpenRouter leave out `_content`.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        texts = [text for text in (delta.get("content"),) if isinstance(text, str) and text]
        self.text += texts
        self.stamps += [now] * (len(texts) + (isinstance(thought, str) and thought != ""))
        self.stamps += [now] * len(_objects(delta.get("tool_calls")))

    def _fail(self, message: str) -> None:
        self.failure, self.is_over = self.failure or message, True


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(holder: Any, name: str) -> int | None:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and value >= 0 else None
