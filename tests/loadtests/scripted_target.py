"""A chat server with known latencies: it waits, then sends a number of deltas at fixed intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio
from starlette.types import Receive, Scope, Send


@dataclass(frozen=True)
class Script:
    """The script of one request."""

    first_seconds: float = 0.5
    gap_seconds: float = 0.1
    deltas: int | None = None
    """The default is as many as max_tokens."""
    status: int = 200
    cut_after: int | None = None
    """After this number of deltas the connection ends without an end mark."""
    error_after: int | None = None


@dataclass
class ScriptedTarget:
    """`script` chooses by the number of the request (from 0)."""

    script: Callable[[int], Script] = lambda number: Script()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    timeouts: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = b""
        while (message := await receive())["more_body"]:
            read += message["body"]
        body, headers = json.loads(read + message["body"]), dict(scope["headers"])
        script = self.script(len(self.bodies))
        self.bodies.append(body)
        self.sessions.append(headers.get(b"x-session-id", b"").decode())
        self.timeouts.append(headers.get(b"x-request-timeout", b"").decode())

        async def event(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        kind = b"application/json" if script.status != 200 else b"text/event-stream"
        head = {"type": "http.response.start", "status": script.status, "headers": [(b"content-type", kind)]}
        await send(head)
        if script.status != 200:
            await event(b'{"error": {"message": "the script says no"}}', more=False)
            return
        # As real servers do immediately; it must not count as a first token.
        await event(b": queued\n\n" + _chunk({"role": "assistant", "content": ""}))
        deltas = script.deltas if script.deltas is not None else body["max_tokens"]
        for number in range(deltas):
            await trio.sleep(script.gap_seconds if number else script.first_seconds)
            if number == script.cut_after:
                raise trio.BrokenResourceError("the script cuts the stream")
            if number == script.error_after:
                await event(b'data: {"error":{"message":"broken"}}\n\ndata: [DONE]\n\n', more=False)
                return
            await event(_chunk({"content": f"word{number} "}))
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": deltas,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        await event(_chunk({}, "length") + _event({"choices": [], "usage": usage}))
        await event(b"data: [DONE]\n\n", more=False)


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
