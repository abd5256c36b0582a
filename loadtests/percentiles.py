"""The one definition of a percentile, and of Jain's fairness index. Pure arithmetic on samples.

Percentiles interpolate linearly between order statistics, as numpy's default does, over all samples of a run;
never over percentiles or averages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile of at least one sample in ascending order; `share` is from 0 to 1."""
    place = share * (len(ordered) - 1)
    below = floor(place)
    least, most = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # One formula for the whole segment, and clamped, so that rounding never puts p95 below p90.
    return min(most, least + (most - least) * (place - below))


def spread(samples: Iterable[float]) -> dict[str, float | None]:
    """Return every quantile by name; None for each if there is no sample."""
    ordered = sorted(samples)
    return {name: percentile(ordered, share) if ordered else None for name, share in QUANTILES.items()}


def median(samples: Iterable[float]) -> float | None:
    return spread(samples)["p50"]


def mean(samples: Sequence[float]) -> float | None:
    return sum(samples) / len(samples) if samples else None


def jain(shares: Sequence[float]) -> float | None:
    """Return Jain's index (Σx)² / (n·Σx²): 1 if all are equal, 1/n if one has everything, None if all are
    zero."""
    most = max(shares, default=0.0)
    if most <= 0:
        return None
    scaled = [share / most for share in shares]  # squares of very small or large shares stay finite
    index = sum(scaled) ** 2 / (len(scaled) * sum(share * share for share in scaled))
    return min(1.0, max(1 / len(scaled), index))
