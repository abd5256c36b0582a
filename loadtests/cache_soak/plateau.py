"""When caches are full, and whether anything grows from then on.

A cache is full from where it first has nearly as much as it ever has. One that has no bound is full only at
the end of the run, however long that is, and too little is left to judge: that is a complaint, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from loadtests.chaos.levels import Level, levels, that_grow

_FULL_SHARE = 0.95
"""Share of a cache's highest value at which it counts as full: large entries make it fall below its bound."""
_LEAST_JUDGED = 1 / 3
"""Share of a run's samples that must come after all caches are full."""
_NOISE_SHARE = 0.03
_SLACK = {
    "server: resident bytes": 6e6,
    "engine: resident bytes": 6e6,
    "server: open files": 4.0,
    "engine: open files": 2.0,
    "server: threads": 4.0,
    "engine: threads": 2.0,
    "requests in the server": 12.0,
    "held prefixes": 8e6,
    "pins": 2.0,
    "prefix nodes": 200.0,
}
"""Growth that allocators, and clients that are there at the moment, explain, beside a share of the level."""

Sample = Mapping[str, float]


def fill_times(
    samples: Sequence[Sample], caches: Collection[str], least: Mapping[str, float]
) -> dict[str, int]:
    """Return from which sample on each cache is full, and each count has reached its `least`; the number of
    samples for one that never is."""
    bounds = {
        name: _FULL_SHARE * max((one.get(name, 0.0) for one in samples), default=0.0) for name in caches
    }
    return {
        name: next((at for at, one in enumerate(samples) if one.get(name, 0.0) >= bound), len(samples))
        for name, bound in (bounds | dict(least)).items()
    }


def judged(samples: Sequence[Sample], caches: Collection[str], least: Mapping[str, float]) -> list[Level]:
    """Return each value's level once all caches are full; empty if too few samples are left."""
    start = max(fill_times(samples, caches, least).values(), default=0)
    after = samples[start:]
    if len(after) < max(2.0, _LEAST_JUDGED * len(samples)):
        return []
    counts = set(least)
    kept = [{name: value for name, value in one.items() if name not in counts} for one in after]
    return levels(kept, _SLACK, _NOISE_SHARE)


def complaints(
    samples: Sequence[Sample], caches: Collection[str], least: Mapping[str, float]
) -> Iterator[str]:
    found = judged(samples, caches, least)
    yield from that_grow(found)
    if found:
        return
    times = fill_times(samples, caches, least)
    late = [name for name, at in times.items() if at > (1 - _LEAST_JUDGED) * len(samples)]
    what = ", ".join(late) or "the start"
    yield (
        f"nothing can be judged: too few of {len(samples)} samples come after {what} reached the highest"
        " value. The run is too short, or there is no bound"
    )
