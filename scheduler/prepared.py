"""A request as it is queued: checked, with the message for its engine and what reads its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.answer.pipeline import AnswerPipeline
from scheduler.repetition import Repetition
from scheduler.request import GenerationRequest
from scheduler.shared.messages import Submit


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request: the message for its engine, and what only the server needs."""

    request: GenerationRequest
    """Without its texts, tools and schemas, which are tokens, `pipelines` and a grammar now."""
    submit: Submit
    """The message for its first choice, with request id 0."""
    pipelines: Callable[[], list[AnswerPipeline]]
    """Return a new pipeline for each choice, from its token ids to its events. They share what is computed
    about stop strings and tools."""
    prefix_blocks: tuple[int, ...] = ()
    """`block_hashes` of the prompt with its salt and its adapter."""
    unheld: tuple[str, ...] = ()
    """What a schema asks that the grammar does not hold, as `field#/JSON/pointer`."""
    repetition: Repetition | None = None
    """The repetition that ends its answers; None if none does."""
    grammar_place: str = "tools"
    """The body's field that the grammar is of."""
    kept_bytes: int = 0
    """What is kept of its tools and schemas."""
