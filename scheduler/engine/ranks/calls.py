"""What rank 0 tells the other ranks, and what they answer: frames over a socket, as on the link.

A call is sent before rank 0 makes it itself, with what the other ranks cannot know: its clock, and what the
engine loop wrote into a sequence. All else they compute from equal weights and equal calls.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

from scheduler.engine.prefill import Chunk
from scheduler.engine.sequence import Sequence
from scheduler.link.messages import Load, Submit
from scheduler.link.wire_struct import WireStruct
from scheduler.token_ids import TokenIds


class Start(WireStruct, frozen=True, tag="start"):
    """The first frame: load this, as this rank. Answered by Joined or Failed."""

    load: Load
    rank: int


class Heard(WireStruct, frozen=True, tag="heard"):
    """The answer to a Said of every rank: what each said, by rank."""

    said: tuple[bytes, ...]


class Prepare(WireStruct, frozen=True, tag="prepare"):
    """A waiting request has a grammar to compile; without the ids of its prompt."""

    submit: Submit


class Forget(WireStruct, frozen=True, tag="forget"):
    """Of a request for which there was a Prepare: it was cancelled or refused."""

    request_id: int


class Admit(WireStruct, frozen=True, tag="admit"):
    """The fields of `Sequence` that the engine loop writes, and how much of the prompt is scored."""

    submit: Submit
    tokens: TokenIds
    prompt_tokens: int
    asked_tokens: int
    checkpoints: tuple[int, ...]
    admission: int
    preemptions: int
    scored_tokens: int

    @classmethod
    def of(cls, sequence: Sequence) -> Admit:
        return cls(
            sequence.submit,
            sequence.tokens,
            sequence.prompt_tokens,
            sequence.asked_tokens,
            sequence.checkpoints,
            sequence.admission,
            sequence.preemptions,
            sequence.scored_tokens,
        )

    def sequence(self) -> Sequence:
        """The other rank's own record, which its back end continues as rank 0's does rank 0's."""
        return Sequence(
            self.submit,
            array("I", self.tokens),
            self.prompt_tokens,
            checkpoints=self.checkpoints,
            admission=self.admission,
            preemptions=self.preemptions,
            scored_tokens=self.scored_tokens,
            _answer_start=self.asked_tokens,
        )


class Refused(WireStruct, frozen=True, tag="refused"):
    """Rank 0 refused what the Admit before this says: so must every rank have done."""

    request_id: int


class Keep(WireStruct, frozen=True, tag="keep"):
    request_id: int
    tokens: int


class Remove(WireStruct, frozen=True, tag="remove"):
    request_id: int


class EndRow(WireStruct, frozen=True, tag="end_row"):
    """The row's next step retires it as failed: on rank 0 its grammar took too long."""

    request_id: int
    reason: str


class SaveMemory(WireStruct, frozen=True, tag="save_memory"):
    saving: bool


class EmitPending(WireStruct, frozen=True, tag="emit_pending"):
    pass


class Step(WireStruct, frozen=True, tag="step"):
    """`chunks`: pairs of request id and tokens."""

    chunks: tuple[tuple[int, int], ...]
    predicted_seconds: float | None

    def as_chunks(self) -> list[Chunk]:
        return [Chunk(request_id, tokens) for request_id, tokens in self.chunks]


class SetBudget(WireStruct, frozen=True, tag="set_budget"):
    """Of the prefix cache."""

    budget_bytes: int


class Evict(WireStruct, frozen=True, tag="evict"):
    need: int


class Clear(WireStruct, frozen=True, tag="clear"):
    """Evict all prefixes that are not in use."""


class EndTurn(WireStruct, frozen=True, tag="end_turn"):
    """A session waits from now on: the gaps until it returns decide what is evicted."""

    salt: str
    session: str
    kind: str


class Unpin(WireStruct, frozen=True, tag="unpin"):
    """Hold a pinned prefix no longer."""

    name: str


class LimitPool(WireStruct, frozen=True, tag="limit_pool"):
    most_bytes: int


class LimitScores(WireStruct, frozen=True, tag="limit_scores"):
    most_bytes: int


class ClearPool(WireStruct, frozen=True, tag="clear_pool"):
    """Return freed buffers to the system."""


class Compare(WireStruct, frozen=True, tag="compare"):
    """Answered by one State with the same number."""

    number: int


Call: TypeAlias = (
    Start
    | Heard
    | Prepare
    | Forget
    | Admit
    | Refused
    | Keep
    | Remove
    | EndRow
    | SaveMemory
    | EmitPending
    | Step
    | SetBudget
    | Evict
    | Clear
    | EndTurn
    | Unpin
    | LimitPool
    | LimitScores
    | ClearPool
    | Compare
)


class Told(WireStruct, frozen=True):
    """One call, at rank 0's time: what ages in a prefix cache ages alike on every rank."""

    now: float
    call: Call


class Said(WireStruct, frozen=True, tag="said"):
    """While the model is loaded: what this rank has found. Answered by Heard, once all ranks have said it."""

    mine: bytes


class Joined(WireStruct, frozen=True, tag="joined"):
    """The model is loaded. `facts`: what must be the same on every rank, in words."""

    facts: dict[str, str]


class Failed(WireStruct, frozen=True, tag="failed"):
    """This rank cannot go on, and is about to exit: one line, and a traceback."""

    error: str
    stack: str


class State(WireStruct, frozen=True, tag="state"):
    """After the calls told before one Compare. `digest`: a hash of all tokens and ends of rows so far, and of
    what was prefilled; then bytes held now."""

    number: int
    digest: str
    prefix_bytes: int
    budget_bytes: int
    row_bytes: int


Answer: TypeAlias = Said | Joined | Failed | State
