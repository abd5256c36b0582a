"""Responses of the server itself, without the application: status, message and bytes of each refusal."""

from __future__ import annotations

import enum
import json
from http import HTTPStatus

from api.http.http_scope import date_header
from api.http.request_id import echoed, new_request_id


class Refusal(enum.Enum):
    """Why the server ended a request or a connection. `value` is the error's code."""

    TOO_MANY_CONNECTIONS = "too_many_connections"
    HEADER_TIMEOUT = "header_timeout"
    HEADERS_TOO_LARGE = "headers_too_large"
    MALFORMED = "malformed_request"
    UNSUPPORTED = "unsupported_protocol"
    BODY_TIMEOUT = "body_timeout"
    BODY_TOO_LARGE = "body_too_large"
    BODIES_TOO_MANY = "bodies_too_many"
    """There is no room for the request's body beside the bodies of other requests."""
    INTERNAL_ERROR = "internal_error"
    WRITE_TIMEOUT = "write_timeout"
    """The client does not read, so this refusal alone has no response."""


_ANSWERS: dict[Refusal, tuple[HTTPStatus, str]] = {
    Refusal.TOO_MANY_CONNECTIONS: (HTTPStatus.SERVICE_UNAVAILABLE, "Too many open connections"),
    Refusal.HEADER_TIMEOUT: (HTTPStatus.REQUEST_TIMEOUT, "The request's headers took too long"),
    Refusal.HEADERS_TOO_LARGE: (
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "The request's headers are too large",
    ),
    Refusal.MALFORMED: (HTTPStatus.BAD_REQUEST, "This is not a valid HTTP/1.1 request"),
    Refusal.UNSUPPORTED: (HTTPStatus.NOT_IMPLEMENTED, "This server does not support that part of HTTP"),
    Refusal.BODY_TIMEOUT: (HTTPStatus.REQUEST_TIMEOUT, "The request's body took too long"),
    Refusal.BODY_TOO_LARGE: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request's body is too large"),
    Refusal.BODIES_TOO_MANY: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The server holds too many large request bodies; try again",
    ),
    Refusal.INTERNAL_ERROR: (HTTPStatus.INTERNAL_SERVER_ERROR, "Internal server error"),
}


class RefusedByServer(Exception):
    """The request was refused before it reached the application, or while it was there."""

    def __init__(
        self, refusal: Refusal, status: int | None = None, *, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal
        self.status = status
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
    usual_status, words = _ANSWERS[refused.refusal]
    status = HTTPStatus(refused.status or usual_status)
    error = {
        "message": words,
        "type": "server_error" if status >= 500 else "invalid_request_error",
        "param": None,
        "code": refused.refusal.value,
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
