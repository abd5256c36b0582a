"""A chat server with known latencies: it waits, then sends a number of deltas at fixed intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from api.http.asgi import Message, Receive, Scope, Send


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
    cached_tokens: int = 0
    prompt_tokens: int = 100


@dataclass
class ScriptedTarget:
    """`script` chooses by the number of the request (from 0) and its body."""

    script: Callable[[int, dict[str, Any]], Script] = lambda number, body: Script()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    timeouts: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/v1/chat/completions":
            await _whole(send, 404, {"error": {"message": "no such path"}})
            return
        body = json.loads(await _read(receive))
        number = len(self.bodies)
        self.bodies.append(body)
        headers = dict(scope["headers"])
        self.sessions.append(headers.get(b"x-session-id", b"").decode())
        self.timeouts.append(headers.get(b"x-request-timeout", b"").decode())
        script = self.script(number, body)
        if script.status != 200:
            await _whole(send, script.status, {"error": {"message": "the script says no"}})
            return
        await self._stream(script, body, send)

    async def _stream(self, script: Script, body: dict[str, Any], send: Send) -> None:
        start: Message = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/event-stream")],
        }
        await send(start)
        # As real servers do immediately; it must not count as a first token.
        await _event(send, b": queued\n\n")
        await _event(send, _chunk({"role": "assistant", "content": ""}))
        deltas = script.deltas if script.deltas is not None else body["max_tokens"]
        for number in range(deltas):
            await trio.sleep(script.gap_seconds if number else script.first_seconds)
            if number == script.cut_after:
                raise trio.BrokenResourceError("the script cuts the stream")
            if number == script.error_after:
                await _event(send, b'data: {"error":{"message":"the script breaks it"}}\n\ndata: [DONE]\n\n')
                await send({"type": "http.response.body", "body": b""})
                return
            await _event(send, _chunk({"content": f"word{number} "}))
        usage = {
            "prompt_tokens": script.prompt_tokens,
            "completion_tokens": deltas,
            "prompt_tokens_details": {"cached_tokens": script.cached_tokens},
        }
        await _event(send, _chunk({}, "length") + b"data: " + _encoded({"choices": [], "usage": usage}))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    return b"data: " + _encoded({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n\n"


async def _event(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _whole(send: Send, status: int, body: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"3")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)
