"""Sample a process's memory, files and threads repeatedly and check whether they stay level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from loadtests.processes import open_files, resident_bytes, threads

_NOISE_SHARE = 0.10
"""Allowed growth between the two thirds of a run: allocators return memory at their own pace."""


@dataclass(frozen=True, slots=True)
class Level:
    """Means over the first and the last third after the warm-up. Growth up to `slack` is noise."""

    name: str
    first: float
    last: float
    highest: float
    slack: float
    noise_share: float = _NOISE_SHARE

    @property
    def grows(self) -> bool:
        return self.last > self.first * (1 + self.noise_share) + self.slack


def of_process(pid: int) -> dict[str, float]:
    """Return the process's resident bytes, open files and threads. Raise OSError if it is gone."""
    return {
        "resident bytes": resident_bytes(pid),
        "open files": open_files(pid),
        "threads": threads(pid),
    }


def levels(
    samples: Sequence[Mapping[str, float]], slack: Mapping[str, float], noise_share: float = _NOISE_SHARE
) -> list[Level]:
    """Return the level of each name. A sample may lack a name: an engine that is loading has no levels."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return [
        _level(
            name, [sample[name] for sample in samples if name in sample], slack.get(name, 0.0), noise_share
        )
        for name in names
    ]


def _level(name: str, values: Sequence[float], slack: float, noise_share: float) -> Level:
    third = max(1, len(values) // 3)
    return Level(name, mean(values[:third]), mean(values[-third:]), max(values), slack, noise_share)


def that_grow(found: Iterable[Level]) -> list[str]:
    return [
        f"{level.name} grew from {level.first:,.0f} to {level.last:,.0f}" for level in found if level.grows
    ]
