"""What a request's stream yields: progress while it waits, text, and exactly one final event."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from scheduler.errors import SchedulerError


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `output_tokens` includes the end-of-sequence token, as vLLM's does."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


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
class TextDelta:
    """Text that is certain to be part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here, incomplete."""

    error: SchedulerError


Progress: TypeAlias = Queued | Prefilling
FinalEvent: TypeAlias = Finished | Failed
StreamEvent: TypeAlias = Queued | Prefilling | TextDelta | Finished | Failed
