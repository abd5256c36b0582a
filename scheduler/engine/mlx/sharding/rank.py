"""What a rank knows of the others while it loads, and what all of them must agree on before the first step.

Ranks load the same model from folders of their own, on machines that may differ. Whatever decides what the
batch does must be equal on all: a collective that one rank makes and another does not ends in a hang. So
rank 0 decides what is a choice (the check's verdict, a group's cost), the least counts of what is a bound
(memory), and what must be equal is compared. All of it goes over the sockets of `engine/ranks`, never over
collectives: one of these beside a step in flight came back full of that step's floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import TypeAlias, TypeVar

import msgspec

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.messages import RankGroup

Exchange: TypeAlias = Callable[[bytes], list[bytes]]
"""Sends these bytes to all ranks, and returns the bytes of each, by rank. Each rank calls it the same number
of times, between two uses of the device. Raises or ends the process if a rank is gone."""

_Fact = TypeVar("_Fact")


class RanksUnusable(LoadRefused):
    """The ranks cannot compute this model together."""


@dataclass(frozen=True, slots=True)
class Rank:
    """This process among the ranks of its engine. `number` 0 decides."""

    number: int
    group: RankGroup
    exchange: Exchange

    @property
    def on_this_machine(self) -> int:
        """Return how many ranks use the memory that this one does: all, where rank 0 starts the others and
        they have no GPU each."""
        return 1 if self.group.control or self.group.backend == "nccl" else self.group.ranks

    def wait(self) -> None:
        """Wait until all ranks are here. Metal's watchdog ends a command that waits 5 s for a peer
        (mlx#3830), and disks differ by more."""
        self.exchange(b"")

    def decided(self, mine: _Fact, kind: type[_Fact] | UnionType) -> _Fact:
        """Return rank 0's value, of the type `kind`."""
        return self._all(mine, kind)[0]

    def least(self, mine: MemoryLimit) -> MemoryLimit:
        """Return the limit of the rank with the least room for keys and values: prefix caches stay equal only
        with equal budgets."""

        def room(limit: MemoryLimit) -> tuple[int, int]:
            return limit.kv_budget_bytes(limit.first_peak_bytes), limit.limit_bytes

        return min(self._all(mine, MemoryLimit), key=room)

    def compare(self, mine: Mapping[str, str]) -> None:
        """Compare what must be equal for all to compute the same, by its name in words. Raise RanksUnusable
        on all ranks if any differs."""
        first, *rest = self._all(dict(mine), dict[str, str])
        for number, facts in enumerate(rest, 1):
            for name, value in facts.items():
                if value != first[name]:
                    raise RanksUnusable(
                        f"rank {number} differs: its {name} is {value}, and {first[name]} on rank 0"
                    )

    def _all(self, mine: _Fact, kind: type[_Fact] | UnionType) -> list[_Fact]:
        reports = self.exchange(msgspec.msgpack.encode(mine))
        return [msgspec.msgpack.decode(each, type=kind) for each in reports]
