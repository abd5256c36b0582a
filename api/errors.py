"""The only place that chooses an HTTP status, and the shape of an error in the client's dialect.

429 is for what the client's own tenant has too much of. 503 is for what the service cannot take now, with
the time to come back: its queue is full, it shuts down, has no engine, could not begin before the request's
timeout, or let the request wait for as long as it lets any (SGLang, too, answers a queue's timeout so).
504 is for an accepted request whose time was up before its answer was complete: it is no use to say when to
come back, since the time was the client's own choice, or the answer's own length. vLLM has no deadlines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError

from scheduler.errors import (
    DeadlineExceeded,
    DeadlineUnmeetable,
    EngineFailure,
    EngineLost,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    QueueTimeout,
    SchedulerError,
    TenantLimit,
    Unavailable,
    UnsupportedParameter,
)


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error on its way to a client, before it has a dialect."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after_seconds: float | None = None

    def headers(self) -> dict[str, str]:
        if self.retry_after_seconds is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after_seconds)))}

    def openai_body(self) -> dict[str, Any]:
        """https://platform.openai.com/docs/guides/error-codes: one object under `error`."""
        return {
            "error": {
                "message": _sendable(self.message),
                "type": self.type,
                "param": None if self.param is None else _sendable(self.param),
                "code": self.code,
            }
        }


def from_scheduler(error: SchedulerError) -> ApiError:
    status, kind = _status_and_type(error)
    return ApiError(status, kind, error.code, error.message, error.param, error.retry_after_seconds)


def _status_and_type(error: SchedulerError) -> tuple[int, str]:
    match error:
        case ModelNotFound():
            return 404, "invalid_request_error"
        case InvalidRequest():
            return 400, "invalid_request_error"
        case TenantLimit():
            return 429, "rate_limit_error"
        case QueueFull() | DeadlineUnmeetable() | QueueTimeout() | Unavailable() | EngineLost():
            return 503, "service_unavailable_error"
        case DeadlineExceeded():
            return 504, "timeout_error"
        case EngineFailure():
            return 500, "server_error"
        case _:
            return 500, "server_error"


def from_validation(error: RequestValidationError) -> ApiError:
    """The first thing wrong with a body, named as the client wrote it."""
    first = error.errors()[0]
    # FastAPI's locations start with "body"; union members add names of our own classes, not the client's.
    path = [part for part in first["loc"][1:] if not str(part).startswith(("function-", "tagged-"))]
    param = ".".join(str(part) for part in path) or None
    if first["type"] == "extra_forbidden":
        code, message = UnsupportedParameter.code, f"{param!r} is not supported by this server"
    elif first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ApiError(400, "invalid_request_error", "invalid_json", f"the body is not JSON: {reason}")
    else:
        reason = first["msg"].removeprefix("Value error, ")
        code, message = InvalidRequest.code, f"{param}: {reason}" if param else reason
    return ApiError(400, "invalid_request_error", code, message, param)


def from_status(status: int, detail: str) -> ApiError:
    """What the framework itself answers: no such path, no such method."""
    codes = {404: "not_found", 405: "method_not_allowed"}
    return ApiError(status, "invalid_request_error", codes.get(status), detail)


def _sendable(text: str) -> str:
    """JSON can bring lone surrogates in (a key that we quote back), but UTF-8 cannot take them out."""
    return text.encode("utf-8", "backslashreplace").decode()


INTERNAL = ApiError(500, "server_error", "internal_error", "Internal server error")
