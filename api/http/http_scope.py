"""Convert a request's head to an ASGI scope, and the application's response head to h11's event. Plain
functions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

import h11
import trio
from starlette.types import Scope

from api.http.request_id import request_id_of

Address: TypeAlias = tuple[str, int] | None


def scope_of(request: h11.Request, client: Address, server: Address) -> Scope:
    authority, target = _split_target(request.target)
    raw_path, _, query = target.partition(b"?")
    # ASGI requires text for any bytes; what is not UTF-8 matches no route.
    path = unquote_to_bytes(raw_path) if b"%" in raw_path else raw_path
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": request.http_version.decode("ascii"),
        "method": request.method.decode("ascii"),
        "scheme": "http",
        "path": path.decode("utf-8", "replace"),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": _headers(request, authority),
        "client": client,
        "server": server,
        "request_id": request_id_of(request.headers),
    }


def _split_target(target: bytes) -> tuple[bytes | None, bytes]:
    """Split a target. Proxies may send `GET http://host/path`; the application must see `/path` either way.
    The host may be None."""
    if target.startswith(b"/") or b"://" not in target:
        return None, target
    authority_and_path = target.partition(b"://")[2]
    start = min(
        (at for at in map(authority_and_path.find, (b"/", b"?")) if at >= 0), default=len(authority_and_path)
    )
    authority, path = authority_and_path[:start], authority_and_path[start:]
    return authority, path if path.startswith(b"/") else b"/" + path


def _headers(request: h11.Request, authority: bytes | None) -> list[tuple[bytes, bytes]]:
    """Return the headers. A target's host replaces the Host header (RFC 9112 3.2.2): a check must see the
    host that counts."""
    headers = list(request.headers)
    if authority is None:
        return headers
    return [(b"host", authority), *(field for field in headers if field[0] != b"host")]


def addresses(stream: trio.abc.Stream) -> tuple[Address, Address]:
    """Return (client, server). Both are None if the stream is not TCP, or was reset already."""
    if not isinstance(stream, trio.SocketStream):
        return None, None
    try:
        # A name of IPv6 has two more members.
        return stream.socket.getpeername()[:2], stream.socket.getsockname()[:2]
    except OSError:
        return None, None


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A response's head, and how its body is framed."""

    response: h11.Response
    has_body: bool
    is_chunked: bool
    """Whether h11 will frame the body in chunks: a copy of its `_body_framing`, which a test compares."""


def response_head(
    request: h11.Request,
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    close: bool,
    server_name: str | None = None,
) -> ResponseHead:
    """Add `date` and, if there is a name, `server`. Raise
    h11.LocalProtocolError for an invalid response, before any byte of it is written."""
    fields = [(bytes(name), bytes(value)) for name, value in headers]
    fields.append((b"date", date_header()))
    if server_name is not None:
        fields.append((b"server", server_name.encode("ascii")))
    if close:
        fields.append((b"connection", b"close"))
    response = h11.Response(status_code=status, headers=fields, reason=_reason(status))
    has_body = request.method != b"HEAD" and status not in (204, 304)
    has_length = any(name == b"content-length" for name, _ in response.headers)
    return ResponseHead(response, has_body, has_body and not has_length and request.http_version >= b"1.1")


@lru_cache(maxsize=64)
def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b""


def date_header() -> bytes:
    return _date_of(int(time.time()))


@lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    # Formatting takes 3 us; every response of one second shares it.
    return formatdate(second, usegmt=True).encode("ascii")
