"""What a member reports to its pool, and what it gets of one memory budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scheduler.link.messages import Counters, Ready, SetMemoryLimit
from scheduler.pool.adapters import Adapters
from scheduler.pool.kinship import Kinship
from scheduler.recovery.death import Death
from scheduler.requests.record import StreamRecord

if TYPE_CHECKING:
    from scheduler.pool.member import Member


@dataclass(frozen=True, slots=True)
class Lost:
    """A process's end as the link saw it, and the requests on board that may have caused it."""

    cause: str
    suspects: Sequence[StreamRecord]


class Owner(Protocol):
    """The pool, to its members."""

    adapters: Adapters
    kinship: Kinship

    def engine_ready(self, member: Member) -> None: ...
    def engine_stepped(self, member: Member) -> None:
        """Its output is delivered."""
        ...

    def engine_progressed(self, record: StreamRecord, now: float, *, started: bool) -> None:
        """A step computed something for this request; `started`: for the first time."""
        ...

    def engine_lost(self, member: Member, lost: Sequence[StreamRecord], cause: str) -> None:
        """Its process has ended, with these requests on board that have no final event."""
        ...

    def engine_recovery_failed(self, member: Member, cause: str) -> None:
        """A bug in `engine_lost`."""
        ...

    def engine_died(self, member: Member, lost: Lost | None, death: Death) -> None:
        """After `engine_lost`, when the cause is known."""
        ...

    def left(self, record: StreamRecord) -> None:
        """A request has left its engine, and its answer is still read."""
        ...

    def retired(self, record: StreamRecord) -> None: ...
    def others_ready(self, member: Member) -> bool:
        """Whether other engines could take its requests."""
        ...


class MemoryShare(Protocol):
    """One engine's part of the memory of all models, over all its processes."""

    def given(self) -> SetMemoryLimit | None:
        """A process is started: what it is loaded with; None: what the options say."""
        ...

    def ready(self, ready: Ready) -> None: ...
    def observe(self, counters: Counters, now: float) -> None: ...
    def ended(self) -> None:
        """Its process has ended, and another takes its place."""
        ...

    def left(self) -> None:
        """Its process has ended, and none takes its place."""
        ...


class WholeMemory:
    """The share of engines that no other model has memory beside."""

    def given(self) -> SetMemoryLimit | None:
        return None

    def ready(self, ready: Ready) -> None: ...
    def observe(self, counters: Counters, now: float) -> None: ...
    def ended(self) -> None: ...
    def left(self) -> None: ...
