"""The JSON text of a whole answer, made as it is sent.

An answer's log-probabilities come to tens of megabytes, which are never held at once: a worker thread encodes
the next slice when the client has taken the one before. The slices are short, because a thread that encodes
holds the interpreter. What an answer repeats from its body is a `msgspec.Raw`, which is encoded once, where
the body is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.bodies.garbage import LARGE_WORK
from scheduler.offload import Offload

SLICE_BYTES = 1 << 15
"""Encoded in about 0.3 ms."""
SLICE_PIECES = 1024
"""Made in less than 1 ms: small values come to few bytes."""
_LARGE_BYTES = RAW_BYTES = 1 << 20

_json = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class JsonList:
    """A list in an answer, whose entries are encoded one by one. `entries` begins again with each call, and
    gives the JSON text of each."""

    entries: Callable[[], Iterable[bytes]]


def json_pieces(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the JSON text of objects and lists in which there may be a `JsonList`. A `msgspec.Raw` is not
    copied, and comes in pieces of RAW_BYTES."""
    match value:
        case JsonList(entries):
            yield from _listed(entries())
        case dict():
            before = b"{"
            for name, member in value.items():
                yield before + _json.encode(name) + b":"
                yield from json_pieces(member)
                before = b","
            yield b"}" if value else b"{}"
        case list() | tuple():
            before = b"["
            for member in value:
                yield before
                yield from json_pieces(member)
                before = b","
            yield b"]" if value else b"[]"
        case msgspec.Raw():
            text = memoryview(value)
            yield from (text[at : at + RAW_BYTES] for at in range(0, len(text), RAW_BYTES))
        case _:
            yield _json.encode(value)


def _listed(entries: Iterable[bytes]) -> Iterator[bytes]:
    before = b"["
    for entry in entries:
        yield before + entry
        before = b","
    yield b"]" if before == b"," else b"[]"


def json_text(value: Any) -> bytes:
    """Return the whole JSON text of `value`."""
    return b"".join(json_pieces(value))


class PiecedResponse(Response):
    """A whole answer. One that fits into a slice has a length. The first slice is made in place, which takes
    less than a thread does, unless a single value in it may be large."""

    media_type = "application/json"

    def __init__(
        self, content: dict[str, Any], offload: Offload, tenant: str, *, in_place: bool = True
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._content = content
        self._offload = offload
        self._tenant = tenant
        self._in_place = in_place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = json_pieces(self._content)
        body, more = await self._first(pieces)
        if not more:
            self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})
        sent = len(body)
        while more:
            body, more = await self._next(pieces)
            sent += len(body)
            await send({"type": "http.response.body", "body": body, "more_body": more})
        if sent > _LARGE_BYTES:
            LARGE_WORK.return_soon()

    async def whole(self) -> bytes:
        """Return the whole text, for an answer that is stored."""
        pieces = json_pieces(self._content)
        part, more = await self._first(pieces)
        parts = [part]
        while more:
            part, more = await self._next(pieces)
            parts.append(part)
        return b"".join(parts)

    async def _first(self, pieces: Iterator[bytes | memoryview]) -> tuple[bytes, bool]:
        return _slice(pieces) if self._in_place else await self._next(pieces)

    async def _next(self, pieces: Iterator[bytes | memoryview]) -> tuple[bytes, bool]:
        return await self._offload(partial(_slice, pieces), tenant=self._tenant)


def _slice(pieces: Iterator[bytes | memoryview]) -> tuple[bytes, bool]:
    """Return a slice, and whether more follows."""
    parts: list[bytes | memoryview] = []
    room = SLICE_BYTES
    for piece in pieces:
        parts.append(piece)
        room -= len(piece)
        if room <= 0 or len(parts) >= SLICE_PIECES:
            return b"".join(parts), True
    return b"".join(parts), False
