"""What a process holds, looked at again and again: whether it stays level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from loadtests.processes import open_files, resident_bytes, threads

_NOISE_SHARE = 0.10
"""Between two thirds of a run: allocators give back what they please."""


@dataclass(frozen=True, slots=True)
class Level:
    """Means over the first and the last third after the warm-up. `slack`: growth up to this is noise."""

    name: str
    first: float
    last: float
    highest: float
    slack: float

    @property
    def grows(self) -> bool:
        return self.last > self.first * (1 + _NOISE_SHARE) + self.slack


def of_process(pid: int) -> dict[str, float]:
    """Its resident bytes, open files and threads. Raises OSError when it is gone."""
    return {
        "resident bytes": resident_bytes(pid),
        "open files": open_files(pid),
        "threads": threads(pid),
    }


def levels(samples: Sequence[Mapping[str, float]], slack: Mapping[str, float]) -> list[Level]:
    """Of each name that the samples have. A sample may lack one: an engine that is loading has no levels."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return [
        _level(name, [sample[name] for sample in samples if name in sample], slack.get(name, 0.0))
        for name in names
    ]


def _level(name: str, values: Sequence[float], slack: float) -> Level:
    third = max(1, len(values) // 3)
    return Level(name, mean(values[:third]), mean(values[-third:]), max(values), slack)


def that_grow(found: Iterable[Level]) -> list[str]:
    return [
        f"{level.name} grew from {level.first:,.0f} to {level.last:,.0f}" for level in found if level.grows
    ]
