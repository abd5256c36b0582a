"""The one error tree of the scheduler.

An error's class is its kind. It has a stable `code`, a message for the client and, where waiting helps,
`retry_after_seconds`. Nothing here knows HTTP: only `api/answers/errors.py` maps these classes to statuses.
"""

from __future__ import annotations

from typing import ClassVar


class SchedulerError(Exception):
    """Base class of the errors that clients see."""

    code: ClassVar[str] = "scheduler_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class InvalidRequest(SchedulerError):
    """The request can never succeed unchanged."""

    code = "invalid_request"


class UnsupportedParameter(InvalidRequest):
    """The request has a field, or a value of one, that is not supported here; the message names it."""

    code = "unsupported_parameter"


class PromptTooLong(InvalidRequest):
    """Prompt and answer together do not fit the model's context, or the prompt alone the KV cache. In vLLM's
    words, which agents and gateways match to shorten a conversation: by the code alone few do."""

    code = "context_length_exceeded"

    def __init__(
        self,
        prompt_tokens: int,
        max_tokens: int | None,
        context_tokens: int,
        *,
        param: str | None = None,
        counted: bool = True,
        why: str = "",
    ) -> None:
        """`max_tokens` is None if the prompt alone is too long. Unless the tokens were `counted`,
        `prompt_tokens` is a lower bound. `why`: what sets the limit, if it is not the model."""
        tokens = f"{prompt_tokens}" if counted else f"at least {prompt_tokens}"
        message = f"This model's maximum context length is {context_tokens} tokens. However, "
        if max_tokens is None:
            message += f"your request has {tokens} input tokens. Please reduce the length of the messages."
        else:
            message += (
                f"you requested {max_tokens} output tokens and your prompt contains {tokens} input tokens,"
                f" for a total of {prompt_tokens + max_tokens} tokens. Please reduce the length of the"
                " messages or the completion."
            )
        super().__init__(f"{message} {why}".rstrip(), param=param)
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context_tokens = context_tokens


class TemplateFailed(InvalidRequest):
    """The model's chat template rejected these messages, or failed on them."""

    code = "chat_template_error"


class ModelNotFound(InvalidRequest):
    """The request names a model that is not served."""

    code = "model_not_found"


class UnknownRequest(InvalidRequest):
    """No request with this id waits or runs, or is among the last that ended."""

    code = "request_not_found"


class EndedByOperator(InvalidRequest):
    """An operator ended the request, which its client should not send again by itself."""

    code = "ended_by_operator"


class QueueFull(SchedulerError):
    """The intake queue is full; the request was not accepted."""

    code = "queue_full"


class TenantLimit(SchedulerError):
    """This tenant has reached its bound on waiting requests; other tenants are not affected. In OpenAI's
    words, from which Codex reads when to try again."""

    code = "rate_limit_exceeded"

    def __init__(self, reason: str, *, retry_after_seconds: float) -> None:
        again = f"Please try again in {max(1, round(retry_after_seconds))}s."
        super().__init__(f"Rate limit reached: {reason}. {again}", retry_after_seconds=retry_after_seconds)


class DeadlineExceeded(SchedulerError):
    """A deadline of an accepted request passed before its answer was complete."""

    code = "deadline_exceeded"


class QueueTimeout(DeadlineExceeded):
    """The request waited in the queue for `--queue-seconds`; the engine never had it."""

    code = "queue_timeout"


class Unavailable(SchedulerError):
    """The service cannot take requests now; the message is the reason."""

    code = "service_unavailable"


class Draining(Unavailable):
    """The service is shutting down."""

    code = "shutting_down"


class EngineFailure(SchedulerError):
    """The engine, not the client, ended an accepted request."""

    code = "engine_error"


class EngineLost(EngineFailure):
    """The engine process died with this request on board, and no other could resume it."""

    code = "engine_lost"


class PoisonousRequest(EngineFailure):
    """The engine died repeatedly with this request on board as the only suspect: resent unchanged, it would
    crash the next engine, too."""

    code = "poisonous_request"


class RequestFailed(EngineFailure):
    """The engine failed at this request's own sampler or row; the others go on."""

    code = "request_failed"


class GrammarLimit(InvalidRequest):
    """The answer came to a place where its grammar meets a limit, or allows nothing. `param` is the request
    field that asked for the grammar."""

    code = "grammar_limit"


KV_EXCEEDED = "The KV cache has no room for more: --kv-cache-bytes."
"""Why a prompt is too long that the model's context would hold."""


class RequestRefused(Exception):
    """Raised inside the engine: it can never run this request. The message is for the client. `most_tokens`:
    the longest prompt that it could, if this one is longer."""

    def __init__(self, message: str, most_tokens: int = 0) -> None:
        super().__init__(message)
        self.most_tokens = most_tokens


class StartupError(Exception):
    """Penstock cannot start with these options; the message is for the operator."""


class OptionError(StartupError):
    """An option has an invalid value; the message names the option."""


class LinkError(Exception):
    """The other side is broken: its bytes or messages break the link's protocol."""
