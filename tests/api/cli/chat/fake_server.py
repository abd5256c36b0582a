"""What stands in for a server's chat completions: a transport with answers in order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import trio

from api.cli.running_server import ListedModel, RunningServer

SERVER = RunningServer(
    "http://127.0.0.1:9", "k", (ListedModel("tiny"), ListedModel("large")), is_penstock=True
)


def sse(*deltas: dict[str, Any], reason: str | None = "stop") -> list[bytes]:
    """The pieces of an answer's body; without a reason it is cut."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    if reason is not None:
        chunks.append({"choices": [{"delta": {}, "finish_reason": reason}]})
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}
        chunks.append({"choices": [], "usage": usage})
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]


def said(*pieces: str, reason: str | None = "stop") -> list[bytes]:
    return sse(*({"content": piece} for piece in pieces), reason=reason)


class Stream(httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[bytes | Exception]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class EndlessStream(httpx.AsyncByteStream):
    """Calls `then` after its one piece."""

    def __init__(self, piece: bytes, then: Callable[[], None]) -> None:
        self._piece = piece
        self._then = then
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._piece
        self._then()
        await trio.sleep_forever()

    async def aclose(self) -> None:
        self.is_closed = True


Given = Sequence[bytes | Exception] | Exception | tuple[int, bytes] | httpx.AsyncByteStream


class Answers(httpx.AsyncBaseTransport):
    """Gives these answers, one for each request: pieces of a body, an error before it, or a status with a
    body."""

    def __init__(self, *answers: Given) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(await request.aread()))
        self.keys.append(request.headers.get("authorization", ""))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.AsyncByteStream):
            return httpx.Response(200, stream=answer)
        if isinstance(answer, tuple):
            return httpx.Response(answer[0], content=answer[1])
        return httpx.Response(200, stream=Stream(answer))
