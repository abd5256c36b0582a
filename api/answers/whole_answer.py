"""Collect a request's events, choice by choice, for clients that do not stream."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from api.answers.answer_blocks import Block, ReasoningBlock, TextBlock, ToolCallBlock
from api.answers.block_sequence import BlockClosed, BlockSequence
from api.bodies.body import charge_body, release_body
from api.bodies.unknown_fields import ignore, pointed
from scheduler.errors import InvalidRequest
from scheduler.events import (
    AnswerPiece,
    Failed,
    Finished,
    Prefilling,
    Queued,
    TextDelta,
    TokenLogprobs,
    Usage,
    total_usage,
)
from scheduler.request import GenerationRequest
from scheduler.service import Scheduler


@dataclass(slots=True)
class WholeChoice:
    """One choice: its blocks in the order in which the model wrote them (read when all is added), and its
    finish reason."""

    finished: Finished | None = None
    _blocks: list[Block] = field(default_factory=list)
    _sequence: BlockSequence = field(default_factory=lambda: BlockSequence(keeps_space=True))

    def add(self, piece: AnswerPiece) -> None:
        self._blocks.extend(step.block for step in self._sequence.add(piece) if isinstance(step, BlockClosed))

    @property
    def blocks(self) -> list[Block]:
        self._blocks.extend(step.block for step in self._sequence.end())
        return self._blocks

    @property
    def end(self) -> Finished:
        assert self.finished is not None, "read before its end"
        return self.finished

    @property
    def text(self) -> str:
        return "".join([block.text for block in self.blocks if isinstance(block, TextBlock)])

    @property
    def reasoning(self) -> str:
        return "".join([block.text for block in self.blocks if isinstance(block, ReasoningBlock)])

    @property
    def tool_calls(self) -> list[ToolCallBlock]:
        return [block for block in self.blocks if isinstance(block, ToolCallBlock)]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return [entry for block in self.blocks if isinstance(block, TextBlock) for entry in block.logprobs]

    @property
    def sendable_blocks(self) -> list[Block]:
        """Return the blocks that a `BlockSequence` without `keeps_space` has."""
        return [
            block
            for index, block in enumerate(self.blocks)
            if index == 0 or not isinstance(block, TextBlock) or block.text.strip()
        ]


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    choices: tuple[WholeChoice, ...]
    """The choices of all prompts in sequence."""
    prompts: int = 1

    @property
    def usage(self) -> Usage:
        usages = [choice.end.usage for choice in self.choices]
        return total_usage(usages, len(usages) // self.prompts)


MAX_HELD_BYTES = 64 << 20
"""Bound on one whole answer, which is held until its last choice has ended."""
_TEXT_BYTES, _LOGPROBS_BYTES, _LOGPROB_BYTES = 4, 320, 12
"""Bytes of each token: its text, its entry of log-probabilities, and each of these."""


def held_bytes(request: GenerationRequest, context_tokens: int) -> int:
    """Return the most bytes of the answer that can be held, or 0 if the model decides its length: seldom as
    long as the context, it is counted as it grows."""
    if request.max_tokens is None:
        return 0
    tokens = request.choices * min(request.max_tokens, context_tokens)
    if request.top_logprobs is None:
        return tokens * _TEXT_BYTES
    return tokens * (_TEXT_BYTES + _entry_bytes(request.top_logprobs))


def _entry_bytes(alternatives: int) -> int:
    return _LOGPROBS_BYTES + (1 + alternatives) * _LOGPROB_BYTES


def check_size(held: int, lowered_by: Sequence[str]) -> None:
    if held > MAX_HELD_BYTES:
        raise InvalidRequest(
            f"the whole answer can take {held >> 20} MiB, of all choices, tokens and log-probabilities; at"
            f" most {MAX_HELD_BYTES >> 20} MiB are held: lower {' or '.join(lowered_by)}, or set stream",
            param=lowered_by[0],
        )


async def whole_answer(
    scheduler: Scheduler,
    requests: list[GenerationRequest],
    *,
    lowered_by: Sequence[str] = ("top_logprobs", "n", "max_tokens"),
    scope: MutableMapping[str, Any] | None = None,
    kept_bytes: int = 0,
) -> WholeAnswer:
    """Follow `requests`, which the scheduler takes out of the list, to their ends. Raise SchedulerError if a
    choice failed, and InvalidRequest for an answer that can become too large, or has. `lowered_by`: the
    dialect's fields that make it smaller. `scope`: of the HTTP request, whose ignored fields get what a
    schema loses, and whose body is released but for `kept_bytes`."""
    check_size(
        sum(held_bytes(request, scheduler.preparation.context_tokens) for request in requests), lowered_by
    )
    held, prompts = 0, len(requests)
    choices = tuple(WholeChoice() for request in requests for _ in range(request.choices))
    async with scheduler.stream(requests) as stream:
        if scope is not None:
            release_body(scope, kept_bytes + stream.kept_bytes)
            if stream.unheld:
                ignore(scope, *pointed(stream.unheld))
        while True:
            try:
                index, event = await stream.receive_choice()
            except trio.EndOfChannel:
                return WholeAnswer(choices, prompts)
            match event:
                case Queued() | Prefilling():
                    pass
                case Finished():
                    choices[index].finished = event
                case Failed(error=error):
                    raise error
                case _:
                    if isinstance(event, TextDelta) and event.logprobs:
                        more = sum(_entry_bytes(len(entry.ids) - 1) for entry in event.logprobs)
                        check_size(held := held + more, lowered_by)
                        charge_body(scope or {}, more)
                    choices[index].add(event)
