"""The log of a server's core: what happened to it, in order, and what followed from each.

It has all that the core's decisions depend on, so that a test replays it without processes
(`tests/scheduler/engines/replay.py`). A file of it is frames of these messages, compressed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from scheduler.config import SchedulerConfig
from scheduler.engines.condition import EngineState
from scheduler.engines.death import Death
from scheduler.events import FinishReason
from scheduler.repetition import Repetition
from scheduler.shared.framing import FrameReader, message_decoder
from scheduler.shared.messages import Begun, Ready, StepOutput, Submit
from scheduler.shared.wire_struct import WireStruct
from scheduler.statistics import DeathCause

_READ_BYTES = 1 << 20
ALL = -1
"""All that was read in an event was read at once."""


class Configured(WireStruct, frozen=True, tag="configured"):
    """The first event."""

    config: SchedulerConfig


class AskedRequest(WireStruct, frozen=True):
    """What the core knows of a request. Its answer's text is in `ReadPart`."""

    submit: Submit
    arrived_at: float
    tenant: str
    session: str | None
    priority: int
    timeout_seconds: float | None
    only_prompt: bool
    prefix_blocks: tuple[int, ...]
    repetition: Repetition | None


class Asked(WireStruct, frozen=True, tag="asked"):
    requests: tuple[AskedRequest, ...]


class Left(WireStruct, frozen=True, tag="left"):
    """Its reader has left, before or after the final event."""

    request: int


class Expired(WireStruct, frozen=True, tag="expired"):
    request: int


class Supervision(WireStruct, frozen=True):
    """What the supervisor of an engine's processes knows at an event of its engine."""

    state: EngineState
    failed_starts: int
    death_cause: DeathCause | None


class BeganLife(WireStruct, frozen=True, tag="began_life"):
    engine: str
    supervision: Supervision
    ready: Ready


class BeganWork(WireStruct, frozen=True, tag="began_work"):
    engine: str
    begun: Begun


class Stepped(WireStruct, frozen=True, tag="stepped"):
    engine: str
    output: StepOutput


class Lost(WireStruct, frozen=True, tag="lost"):
    engine: str
    supervision: Supervision
    cause: str


class Died(WireStruct, frozen=True, tag="died"):
    engine: str
    supervision: Supervision
    death: Death


class ReadSlice(WireStruct, frozen=True, tag="read_slice"):
    """More of what steps had brought was read, in a slice."""


class ReadElsewhere(WireStruct, frozen=True, tag="read_elsewhere"):
    """A part of its answer has been read in a worker thread."""

    request: int


class CarriedOut(WireStruct, frozen=True, tag="carried_out"):
    """An operator's or a timer's doing. `held`: whether queued requests stay queued."""

    held: bool


class Closed(WireStruct, frozen=True, tag="closed"):
    """The server ends, and with it every request."""


class Outside(WireStruct, frozen=True, tag="outside"):
    """Nothing that is hooked happened, and yet something followed: a hook is missing."""


Event: TypeAlias = (
    Configured
    | Asked
    | Left
    | Expired
    | BeganLife
    | BeganWork
    | Stepped
    | Lost
    | Died
    | ReadSlice
    | ReadElsewhere
    | CarriedOut
    | Closed
    | Outside
)


class ReadPart(WireStruct, frozen=True):
    """What reading a part of an answer has shown, where it is more than text. `part`: its number in that
    answer, from 1."""

    request: int
    part: int
    heavy: bool
    """Whether a worker thread read it."""
    called: tuple[str, ...]
    """The tools whose calls begin in it."""
    stopped: bool
    """Whether the answer's text has ended it."""
    reason: FinishReason | None
    """The finish reason, at an end that is not the row's."""
    failed: str
    """The outcome with which the answer fails here; empty if it goes on."""


class Line(WireStruct, frozen=True):
    at: float
    event: Event
    effects: tuple[str, ...]
    """In their order: what engines were sent, which requests have had their final event, are charged, are
    over."""
    in_time: int = ALL
    """How many looks at the clock found the step's budget for reading unspent; ALL if each did."""
    reads: tuple[ReadPart, ...] = ()


def read_log(path: Path) -> Iterator[Line]:
    """Yield the lines of a log, up to the last whole one: its server may have been killed."""
    reader: FrameReader[Line] = FrameReader(message_decoder(Line))
    with gzip.open(path) as file:
        try:
            while data := file.read1(_READ_BYTES):
                yield from reader.feed(data)
        except EOFError:
            return
