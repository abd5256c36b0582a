"""What a request's stream yields: progress while it waits, pieces of the answer, and exactly one final event.

No dialect is in here: OpenAI's chunks and Anthropic's content blocks are two spellings of these.
Pieces come in the order in which the model wrote them, and a reader that falls behind gets fewer and
longer ones, never others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from scheduler.errors import SchedulerError


class FinishReason(StrEnum):
    STOP = "stop"
    """The model ended its turn, or wrote a stop string."""
    LENGTH = "length"
    """max_tokens came first. A tool call that it cut in two is not in the answer as a whole call."""
    TOOL_CALLS = "tool_calls"
    """The model ended its turn, and there is at least one whole call in it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `output_tokens` includes the end-of-sequence token, as vLLM's does,
    and the `reasoning_tokens`."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0


def total_usage(choices: Sequence[Usage]) -> Usage:
    """What the choices of one request used together: they share the one prompt."""
    return Usage(
        prompt_tokens=choices[0].prompt_tokens,
        cached_tokens=choices[0].cached_tokens,
        output_tokens=sum(usage.output_tokens for usage in choices),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in choices),
    )


def usage_of_all(prompts: Sequence[Usage]) -> Usage:
    """What the prompts of one client's request used together."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
        cached_tokens=sum(usage.cached_tokens for usage in prompts),
        output_tokens=sum(usage.output_tokens for usage in prompts),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in prompts),
    )


@dataclass(frozen=True, slots=True)
class Queued:
    """Waiting for a slot, with `ahead` requests before it."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Prefilling:
    """In a slot; `done` of `total` prompt tokens are computed."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token as text and as bytes (a token may be half a character), with its log-probability."""

    token_id: int
    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token of the answer, and the likeliest tokens in its place, best first."""

    chosen: Logprob
    top: tuple[Logprob, ...] = ()
    offset: int = 0
    """Where its text begins, in characters of all that the model wrote."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is certain to be part of the answer, and where asked for, the tokens it is made of. A token
    that two pieces have a part of is with the first."""

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text that the model wrote to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model calls `name`. Calls are counted from 0, and one is over before the next starts."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the JSON text of that call's arguments. The pieces of a call join to one JSON object,
    unless the answer is cut off in the middle of it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason
    usage: Usage
    stop_string: str | None = None
    """The stop string that ended it; None where the model ended it itself."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here, incomplete."""

    error: SchedulerError


Progress: TypeAlias = Queued | Prefilling
AnswerPiece: TypeAlias = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallArguments
FinalEvent: TypeAlias = Finished | Failed
StreamEvent: TypeAlias = Progress | AnswerPiece | FinalEvent
