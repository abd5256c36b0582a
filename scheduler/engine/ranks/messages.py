"""What rank 0 sends to the other ranks, and what they answer: frames over a socket, as on the link.

A plan is sent before rank 0 carries it out itself, with what the other ranks cannot know: its clock, and what
the engine loop wrote into a sequence. All else they compute from equal weights and equal plans.
"""

from __future__ import annotations

from typing import TypeAlias

from scheduler.engine.plan import StepPlan
from scheduler.shared.messages import Load, Submit
from scheduler.shared.wire_struct import WireStruct


class Start(WireStruct, frozen=True, tag="start"):
    """The first frame: load this, as this rank. Answered by LoadReport messages, then Joined or
    RankFailed."""

    load: Load
    rank: int


class LoadReports(WireStruct, frozen=True, tag="heard"):
    """The content of the LoadReport of each rank, by rank, once all have one."""

    reports: tuple[bytes, ...]


class Prepare(WireStruct, frozen=True, tag="prepare"):
    """A waiting request has a grammar to compile. `submit` is without the ids of its prompt."""

    submit: Submit


ToRank: TypeAlias = Start | LoadReports | Prepare | StepPlan


class LoadReport(WireStruct, frozen=True, tag="said"):
    """What this rank has found while it loads the model. Answered by LoadReports, once all ranks have one."""

    mine: bytes


class Joined(WireStruct, frozen=True, tag="joined"):
    """The model is loaded. `facts`: what must be the same on every rank, in words."""

    facts: dict[str, str]


class RankFailed(WireStruct, frozen=True, tag="failed"):
    """This rank cannot continue, and is about to exit: one line, and a traceback."""

    error: str
    stack: str


class RankState(WireStruct, frozen=True, tag="state"):
    """Sent after the plan that had this number in `compare`. `digest`: a hash of all tokens and ends of rows
    so far, and of what was prefilled. The bytes are those at that time."""

    number: int
    digest: str
    prefix_bytes: int
    budget_bytes: int
    row_bytes: int


Answer: TypeAlias = LoadReport | Joined | RankFailed | RankState
