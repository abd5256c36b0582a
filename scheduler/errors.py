"""The one error tree of the scheduler.

Every error that a client can meet says whose fault it is (its class), carries a stable `code`, a
message written for that client, and, where waiting helps, `retry_after_seconds`. Nothing here knows
HTTP: `api/errors.py` is the only place that turns these classes into statuses.
"""

from __future__ import annotations

from typing import ClassVar


class SchedulerError(Exception):
    """Root of everything the scheduler raises on purpose."""

    code: ClassVar[str] = "scheduler_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class InvalidRequest(SchedulerError):
    """The client sent something that can never succeed as it stands."""

    code = "invalid_request"


class UnsupportedParameter(InvalidRequest):
    """A field that we know or do not know, but do not honour: refused by name, never ignored."""

    code = "unsupported_parameter"


class PromptTooLong(InvalidRequest):
    """Prompt and answer together cannot fit the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self,
        prompt_tokens: int,
        max_tokens: int | None,
        context_tokens: int,
        *,
        param: str,
        counted: bool = True,
    ) -> None:
        """`max_tokens` None: the prompt alone is too long; not `counted`: it has `prompt_tokens` or more."""
        if max_tokens is None:
            tokens = f"{prompt_tokens} tokens" if counted else f"at least {prompt_tokens} tokens"
            message = (
                f"the prompt has {tokens} and the model's context is {context_tokens}:"
                " no room is left for an answer"
            )
        else:
            message = (
                f"the prompt has {prompt_tokens} tokens and max_tokens asks for {max_tokens} more,"
                f" but the model's context is {context_tokens}"
            )
        super().__init__(message, param=param)
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context_tokens = context_tokens


class TemplateFailed(InvalidRequest):
    """The model's chat template refused or could not render these messages."""

    code = "chat_template_error"


class ModelNotFound(InvalidRequest):
    """The request names a model that this server does not serve."""

    code = "model_not_found"


class QueueFull(SchedulerError):
    """The intake queue is at the service's bound; the request was not accepted."""

    code = "queue_full"


class TenantLimit(SchedulerError):
    """This tenant has as much waiting as one may have; others are not concerned."""

    code = "tenant_limit"


class DeadlineUnmeetable(SchedulerError):
    """The request's own timeout would pass before its turn; it was not accepted."""

    code = "deadline_unmeetable"


class DeadlineExceeded(SchedulerError):
    """An accepted request's time was up before its answer was complete."""

    code = "deadline_exceeded"


class QueueTimeout(DeadlineExceeded):
    """It waited for as long as the service lets a request wait; the engine never had it."""

    code = "queue_timeout"


class Unavailable(SchedulerError):
    """The service cannot take requests now, and says why."""

    code = "service_unavailable"


class Draining(Unavailable):
    """The service is shutting down."""

    code = "shutting_down"


class EngineFailure(SchedulerError):
    """An accepted request ended because of the engine, not because of the client."""

    code = "engine_error"


class EngineLost(EngineFailure):
    """The engine process died with this request on board, and no other could be started to go on with it."""

    code = "engine_lost"


class PoisonousRequest(EngineFailure):
    """The engine died again and again with this request on board, and with no other to blame: sent again as
    it is, it would kill the next engine, too."""

    code = "poisonous_request"


class RequestFailed(EngineFailure):
    """The engine ended this request alone: its own sampler, its own row."""

    code = "request_failed"


class MalformedToolCall(EngineFailure):
    """The model wrote a tool call that cannot be read. The message carries what it wrote."""

    code = "malformed_tool_call"


class StartupError(Exception):
    """Penstock cannot start as it was asked to; the message is for the operator."""


class OptionError(StartupError):
    """An option has a value that cannot be used; the message names the option."""


class LinkError(Exception):
    """Bytes on the link that are not the protocol: the other side is broken or foreign."""
