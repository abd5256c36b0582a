"""Which engines there should be: one for each place that a living node offers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduler.cluster.agent_messages import Node

RETRY_SECONDS = 60.0
"""An engine that could not be started is tried again after this long, and when its node joins again."""
RETRY_LIMIT_SECONDS = 3600.0
"""The wait doubles up to this: a machine may load a model for minutes only to be refused."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One place for an engine: a unit of a node's resource `mlx`."""

    node_id: str
    machine: str
    unit: int
    of: int = 1
    """How many units the node has."""


@dataclass(frozen=True, slots=True)
class Seated:
    """A member of the pool, as this decision sees it."""

    name: str
    seat: Seat
    linked: bool
    """Whether its link lives: an engine runs there, whatever Ray says of the node."""
    retry_at: float | None = None
    """It could not be started, and is tried again then; None: it runs, or is being started."""


@dataclass(frozen=True, slots=True)
class Changes:
    add: tuple[Seat, ...] = ()
    remove: tuple[str, ...] = ()
    move: tuple[tuple[str, Seat], ...] = ()
    """Members whose node has joined again: their engines, or their next ones, are there."""
    retry: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.add or self.remove or self.move or self.retry)


def changes(nodes: Sequence[Node], members: Sequence[Seated], now: float, most: int) -> Changes:
    """Return what makes the members fit the nodes that live; `most`: members that there may be.

    A member whose node is gone stays while its link lives: nothing of it is lost. It takes a place of the
    same machine when that joins again, before anybody new does: its engine holds the device.
    """
    free = {seat: None for node in nodes for seat in _seats(node)}
    homeless = []
    for member in members:
        if member.seat in free:
            del free[member.seat]
        else:
            homeless.append(member)
    move, remove = [], []
    # Engines that run go first: they are on the machine for certain.
    for member in sorted(homeless, key=lambda one: not one.linked):
        seat = next((seat for seat in free if seat.machine == member.seat.machine), None)
        if seat is not None:
            del free[seat]
            move.append((member.name, seat))
        elif not member.linked:
            remove.append(member.name)
    moved = {name for name, _ in move}
    retry = tuple(
        member.name
        for member in members
        if member.retry_at is not None
        and member.name not in remove
        and (member.name in moved or now >= member.retry_at)
    )
    room = max(0, most - len(members) + len(remove))
    return Changes(tuple(free)[:room], tuple(remove), tuple(move), retry)


def retry_seconds(failures: int) -> float:
    """Return how long an engine waits that could not be started `failures` times in a row."""
    return min(RETRY_SECONDS * 2.0 ** min(failures - 1, 16), RETRY_LIMIT_SECONDS)


def _seats(node: Node) -> Iterator[Seat]:
    for unit in range(node.places):
        yield Seat(node.id, node.machine, unit, node.places)
