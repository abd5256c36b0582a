"""The only place that chooses an HTTP status, and an error's form in each dialect.

429 means that the client's own tenant has too many requests. 503 means that the service cannot take the
request now, and says when to come back: its queue is full, it shuts down, has no engine, could not begin
before the request's timeout, or the queue timeout has passed (for which SGLang, too, answers 503). 504 means
that the time of an accepted request was up before its answer was complete. It does not say when to come back,
since the client chose the time, or the answer was too long for it. vLLM has no deadlines. A tool call that
cannot be parsed is no error: the model wrote it, and the answer has it (`docs/tool-calling.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError

from api.bodies.fields import UNSUPPORTED
from scheduler.errors import (
    DeadlineExceeded,
    EngineLost,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    QueueTimeout,
    SchedulerError,
    TenantLimit,
    Unavailable,
    UnknownRequest,
    UnsupportedParameter,
)

MAX_MESSAGE_CHARACTERS = 4096
"""The bound on messages: errors quote client input, which may be a name of megabytes."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error before it is encoded in a dialect."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after_seconds: float | None = None
    anthropic_message: str | None = None
    """Set if Anthropic's clients match the message's text."""
    request_id: str | None = None
    """The id of the failed HTTP request, as in `x-request-id`."""

    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        if self.status == 415:
            return {"accept-encoding": "identity"}
        if self.status == 426:
            return {"upgrade": "HTTP/1.1", "connection": "upgrade"}
        if self.retry_after_seconds is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after_seconds)))}

    @property
    def sendable_message(self) -> str:
        return _sendable(self.message)

    def openai_body(self) -> dict[str, Any]:
        """Return the body of https://platform.openai.com/docs/guides/error-codes: one object under
        `error`."""
        return {
            "error": {
                "message": self.sendable_message,
                "type": self.type,
                "param": None if self.param is None else _sendable(self.param),
                "code": self.code,
            }
        }

    @property
    def anthropic_status(self) -> int:
        """Return the status of https://platform.claude.com/docs/en/api/errors: full or unavailable is
        "overloaded"."""
        return 529 if self.code == QueueFull.code or self.status == 503 else self.status

    def anthropic_body(self) -> dict[str, Any]:
        """Return the body of the same page: a type, which depends on the status, a message and the request's
        id; no parameter, no code."""
        status = self.anthropic_status
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        message = _sendable(self.anthropic_message or self.message)
        named = {} if self.request_id is None else {"request_id": self.request_id}
        return {"type": "error", "error": {"type": kind, "message": message}, **named}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class ApiFailure(Exception):
    """An error that does not come from the scheduler: authorization, and unknown models or responses."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def refused(
    message: str, param: str | None = None, code: str = UnsupportedParameter.code, status: int = 400
) -> ApiFailure:
    """Return what refuses a request that can never succeed unchanged."""
    return ApiFailure(ApiError(status, "invalid_request_error", code, message, param))


def from_scheduler(error: SchedulerError) -> ApiError:
    status, kind = _status_and_type(error)
    return ApiError(
        status,
        kind,
        error.code,
        error.message,
        error.param,
        error.retry_after_seconds,
        _anthropic_message(error),
    )


def _anthropic_message(error: SchedulerError) -> str | None:
    """Return Anthropic's own words, by which Claude Code shortens its history, requests fewer tokens, or says
    that there is no such model. Those for too many tokens go on with what pi, Strands and Hermes look for."""
    match error:
        case PromptTooLong(prompt_tokens=prompt, max_tokens=None, context_tokens=context):
            return f"prompt is too long: {prompt} tokens > {context} maximum"
        case PromptTooLong(prompt_tokens=prompt, max_tokens=asked, context_tokens=context):
            return (
                f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > {context},"
                " decrease input length or `max_tokens` and try again: input and output tokens exceed your"
                f" context limit. {error.message}"
            )
        case ModelNotFound():
            return f"model: {error.message.removeprefix('The model ')}"
        case _:
            return None


def _status_and_type(error: SchedulerError) -> tuple[int, str]:
    match error:
        case ModelNotFound() | UnknownRequest():
            return 404, "invalid_request_error"
        case InvalidRequest():
            return 400, "invalid_request_error"
        case TenantLimit():
            return 429, "rate_limit_error"
        case QueueFull() | QueueTimeout() | Unavailable() | EngineLost():
            return 503, "service_unavailable_error"
        case DeadlineExceeded():
            return 504, "timeout_error"
        case _:
            return 500, "server_error"


def from_validation(error: RequestValidationError) -> ApiError:
    """Report the first mistake in a body, under the client's name for the field."""
    first = error.errors()[0]
    param = _named_by_client(first, error.body)
    if first["type"] == UNSUPPORTED:
        code, message = UnsupportedParameter.code, f"{param!r} is not supported here: {first['msg']}"
    elif first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ApiError(400, "invalid_request_error", "invalid_json", f"the body is not JSON: {reason}")
    else:
        reason = first["msg"].removeprefix("Value error, ")
        code, message = InvalidRequest.code, f"{param}: {reason}" if param else reason
    return ApiError(400, "invalid_request_error", code, message, param)


def _named_by_client(error: dict[str, Any], body: Any) -> str | None:
    """Return the path of a mistake as the client wrote it. Pydantic's path also has names of the schema (a
    union's members, a validator). They are not in the client's body, and are dropped. A missing field is not
    in the body either, but is last in the path."""
    path: list[str] = []
    where, *location = error["loc"]
    if where != "body":
        # Query parameters have flat names.
        return ".".join(str(part) for part in location) or None
    for number, part in enumerate(location, 1):
        if (isinstance(body, dict) and part in body) or (
            isinstance(body, list) and isinstance(part, int) and part < len(body)
        ):
            body = body[part]
        elif not (number == len(location) and error["type"] in ("missing", "missing_argument")):
            continue
        path.append(str(part))
    return ".".join(path) or None


def from_status(status: int, detail: str, allow: str | None = None) -> ApiError:
    """Report an error of the framework: unknown path, method not allowed. `allow`: the methods that the path
    has."""
    codes = {404: "not_found", 405: "method_not_allowed"}
    if status == 404:
        # Most base URLs that are wrong lack it, or have it twice.
        detail = f"{detail}: the paths of the API begin with /v1, and /docs lists them"
    elif status == 405 and allow is not None:
        detail = f"{detail}: this path takes {allow}"
    return ApiError(status, "invalid_request_error", codes.get(status), detail)


def _sendable(text: str) -> str:
    """Cut the text, and replace lone surrogates: JSON can have them, as in a key that is quoted, and UTF-8
    not."""
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_MESSAGE_CHARACTERS]


INTERNAL = ApiError(500, "server_error", "internal_error", "Internal server error")
ONLY_HTTP = ApiError(
    426,
    "invalid_request_error",
    "only_http",
    "this path has no WebSocket: send a POST, which can stream server-sent events",
)
NO_KEY = ApiError(
    401,
    "invalid_request_error",
    "missing_api_key",
    "You didn't provide an API key: send it in the header Authorization (Bearer ...) or x-api-key",
)
WRONG_KEY = ApiError(
    401,
    "invalid_request_error",
    "invalid_api_key",
    "Incorrect API key provided: this server does not know it",
    anthropic_message="invalid x-api-key: this server does not know it",
)


def unknown_encoding(encoding: str) -> ApiError:
    message = f"the body's encoding {encoding[:200]!r} is not supported: send it plain"
    return ApiError(415, "invalid_request_error", "unsupported_encoding", message)


def host_not_allowed(host: str) -> ApiError:
    message = f"the host {host[:200]!r} is not allowed; --allowed-hosts adds host names"
    return ApiError(403, "permission_error", "host_not_allowed", message)


def origin_not_allowed(origin: str) -> ApiError:
    scheme, separator, _ = origin[:200].partition("://")
    every = f", such as {scheme}://*" if separator and scheme not in ("http", "https") else ""
    message = f"the origin {origin[:200]!r} is not allowed; --cors-origins adds origins{every}"
    return ApiError(403, "permission_error", "origin_not_allowed", message)


ADMIN_ONLY = ApiError(
    403, "permission_error", "admin_only", "this path needs an API key that is marked admin"
)
