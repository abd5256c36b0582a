"""The events of a request's stream: progress while it waits, pieces of the answer, and exactly one final
event.

They are independent of any API: OpenAI's chunks and Anthropic's content blocks are built from them. Pieces
come in the order in which the model wrote them; a reader that falls behind gets fewer and longer ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from scheduler.errors import SchedulerError


class FinishReason(StrEnum):
    STOP = "stop"
    """The model ended its turn, or wrote a stop string."""
    LENGTH = "length"
    """max_tokens was reached, or the answer repeated itself. A tool call that this cut off does not count as
    a whole call."""
    TOOL_CALLS = "tool_calls"
    """The model ended its turn with at least one call that was started."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `output_tokens` includes the end-of-sequence token, as vLLM's does,
    and the `reasoning_tokens`."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0


def total_usage(usages: Sequence[Usage], choices: int) -> Usage:
    """Return the usage of one client's request, from that of each choice, prompt by prompt: each prompt has
    `choices`, and counts once."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages[::choices]),
        cached_tokens=sum(usage.cached_tokens for usage in usages[::choices]),
        output_tokens=sum(usage.output_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )


@dataclass(frozen=True, slots=True)
class Queued:
    """Waiting for a slot."""

    waits_for: str = ""
    """What must happen first, such as that its model is loaded; empty if nothing."""


@dataclass(frozen=True, slots=True)
class Prefilling:
    """The request is in a slot; `done` of `total` prompt tokens are computed."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token of the answer, and the likeliest tokens in its place, best first.

    Packed, 12 bytes each: a whole answer holds hundreds of thousands of them until it is sent.
    """

    ids: array[int]
    """The token's own id, then those of the likeliest."""
    values: array[float]
    """The log-probability of each."""
    spelling: Callable[[int], bytes] = field(compare=False, repr=False)
    """Gives the bytes of a token."""
    offset: int = 0
    """The offset of its text, in characters of the model's whole output."""

    @classmethod
    def of(
        cls,
        token_id: int,
        logprob: float,
        top: Sequence[tuple[int, float]],
        spelling: Callable[[int], bytes],
        offset: int = 0,
    ) -> TokenLogprobs:
        # From lists: an array that grows keeps spare room.
        ids = array("i", [token_id, *[other for other, _ in top]])
        values = array("d", [logprob, *[value for _, value in top]])
        return cls(ids, values, spelling, offset)


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of a prompt as bytes, where its text begins (in characters of the prompt's tokens), and its
    log-probabilities; None for the first, before which nothing stands."""

    data: bytes
    offset: int
    logprobs: TokenLogprobs | None


PromptScores: TypeAlias = Callable[[], Iterator[PromptToken]]
"""The log-probabilities of one prompt's tokens. A prompt has thousands: they are spelled one by one, as they
are written."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the answer and, if requested, its tokens with log-probabilities. A token that spans two pieces
    is in the first."""

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model calls `name`. Calls are numbered from 0, and each ends before the next starts."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the JSON text of a call's arguments. The pieces of a call join to one JSON object, unless
    the answer is cut off inside it, or a MalformedCall follows."""

    index: int
    text: str


class CallFault(StrEnum):
    """Why a call cannot be read."""

    NO_CALL = "no_call"
    """Marks of calls without a call that names a tool."""
    ARGUMENTS = "arguments"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that cannot be parsed: the model's failure, so the answer continues.

    `text` is all of it as the model wrote it, with its marks. Without `index`, nothing of it was sent.
    Otherwise `index` is the number of the call, which is over, and `rest` is the part of its arguments that
    was not sent: the pieces join to text that is no JSON object.
    """

    text: str
    index: int | None = None
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason
    usage: Usage
    stop_string: str | None = None
    """The stop string that ended it; None if there was none."""
    repeats: bool = False
    """Whether it ended because it repeated one phrase."""
    malformed_calls: int = 0
    """How many of its tool calls cannot be parsed."""
    end_token: TokenLogprobs | None = None
    """The token that ended it, which is no text, if log-probabilities are requested."""
    prompt: PromptScores | None = None
    """Log-probabilities of the prompt, with a request's first choice if it asks for them."""
    vector: bytes = b""
    """The vector that a request asked for, which has no other answer: float32, little-endian."""
    hold_refusal: str = ""
    """Why what the request asked to hold is not held, a sentence for the operator; empty if it is, or if
    nothing was asked."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here, incomplete."""

    error: SchedulerError


Progress: TypeAlias = Queued | Prefilling
AnswerPiece: TypeAlias = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallArguments | MalformedCall
FinalEvent: TypeAlias = Finished | Failed
StreamEvent: TypeAlias = Progress | AnswerPiece | FinalEvent
