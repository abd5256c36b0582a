"""Responses of the server itself, without the application: status, message and bytes of each refusal."""

from __future__ import annotations

import enum
import json
from http import HTTPStatus

from api.http.http_scope import date_header
from api.http.request_id import echoed, new_request_id


class Refusal(enum.Enum):
    """Why the server ended a request or a connection: the error's code, its usual status and its message."""

    TOO_MANY_CONNECTIONS = "too_many_connections", 503, "Too many open connections"
    HEADER_TIMEOUT = "header_timeout", 408, "The request's headers took too long"
    HEADERS_TOO_LARGE = "headers_too_large", 431, "The request's headers are too large"
    MALFORMED = "malformed_request", 400, "This is not a valid HTTP/1.1 request"
    UNSUPPORTED = "unsupported_protocol", 501, "This server does not support that part of HTTP"
    BODY_TIMEOUT = "body_timeout", 408, "The request's body took too long"
    BODY_TOO_LARGE = "body_too_large", 413, "The request's body is too large"
    BODIES_TOO_MANY = "bodies_too_many", 503, "The server holds too many large request bodies; try again"
    INTERNAL_ERROR = "internal_error", 500, "Internal server error"
    WRITE_TIMEOUT = "write_timeout", 408, ""
    """The client does not read, so this refusal alone has no response."""

    def __init__(self, code: str, status: int, words: str) -> None:
        self.code = code
        self.status = status
        self.words = words


class RefusedByServer(Exception):
    """The request was refused before it reached the application, or while it was there."""

    def __init__(
        self, refusal: Refusal, status: int | None = None, *, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal
        self.status = HTTPStatus(status or refusal.status)
        self.retry_after_seconds = retry_after_seconds


def answer(
    refused: RefusedByServer,
    *,
    server_name: str | None,
    with_body: bool = True,
    request_id: str | None = None,
) -> bytes:
    """Return the whole response. It ends the connection, so it need not pass through h11's states.
    `request_id` is None if no request was read; the response still gets an id, for the client to report."""
    request_id = request_id or new_request_id()
    status = refused.status
    error = {
        "message": refused.refusal.words,
        "type": "server_error" if status >= 500 else "invalid_request_error",
        "param": None,
        "code": refused.refusal.code,
    }
    # With `type`, so that Anthropic's clients understand it too: the dialect is not known here.
    content = {"type": "error", "error": error, "request_id": request_id}
    body = json.dumps(content, separators=(",", ":")).encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}".encode(),
        b"date: " + date_header(),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
        *(name + b": " + value for name, value in echoed(request_id)),
    ]
    if server_name is not None:
        lines.append(b"server: " + server_name.encode("ascii"))
    if refused.retry_after_seconds is not None:
        lines.append(b"retry-after: %d" % refused.retry_after_seconds)
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body if with_body else b"")
