"""Rates and percentiles of the last seconds, computed from snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from api.cli.top.snapshots import Buckets, ServerSnapshot

WINDOW_SECONDS = 10.0
_POINTS = 60
_SHORTEST_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a window. One is None if nothing was observed for it."""

    output_rate: float | None
    """Generated tokens a second; the two rates below are in tokens a second, too."""
    prefill_rate: float | None
    cached_rate: float | None
    cached_share: float | None
    """The share of the prompt tokens in the window that came from the cache: 0 to 1."""
    ttft_seconds: tuple[float, float] | None
    """Median and 95th percentile."""
    itl_seconds: tuple[float, float] | None
    output_rates: tuple[float, ...]
    """Rates between each two snapshots, the oldest first."""
    drafts: tuple[float, float] | None = None
    """Tokens that a row got in a step on average, and the accepted share of the drafted ones."""


class SnapshotWindow:
    """The last snapshots of one model on one run of the server."""

    def __init__(self) -> None:
        self._snapshots: deque[ServerSnapshot] = deque()
        self._rates: deque[float] = deque(maxlen=_POINTS)

    def add(self, now: ServerSnapshot) -> None:
        """Add a snapshot. Forget the earlier ones if it is of another model or another run of the server."""
        if self._snapshots:
            last = self._snapshots[-1]
            if (
                now.model != last.model
                or now.time < last.time
                or now.generated_tokens < last.generated_tokens
            ):
                self._snapshots.clear()
                self._rates.clear()
            elif now.time - last.time >= _SHORTEST_SECONDS:
                self._rates.append((now.generated_tokens - last.generated_tokens) / (now.time - last.time))
        self._snapshots.append(now)
        while now.time - self._snapshots[0].time > WINDOW_SECONDS:
            self._snapshots.popleft()

    def figures(self) -> Figures:
        """Return the figures of the window. Raise IndexError if there is no snapshot."""
        then, now = self._snapshots[0], self._snapshots[-1]
        span = now.time - then.time

        def rate(before: float, after: float) -> float | None:
            return max(0.0, after - before) / span if span >= _SHORTEST_SECONDS else None

        prefilled = max(0.0, now.prefilled_tokens - then.prefilled_tokens)
        cached = max(0.0, now.cached_tokens - then.cached_tokens)
        prompt = prefilled + cached
        return Figures(
            output_rate=rate(then.generated_tokens, now.generated_tokens),
            prefill_rate=rate(0.0, prefilled),
            cached_rate=rate(0.0, cached),
            cached_share=cached / prompt if prompt else None,
            ttft_seconds=_median_and_95th(then.ttft, now.ttft),
            itl_seconds=_median_and_95th(then.itl, now.itl),
            output_rates=tuple(self._rates),
            drafts=_drafts(then, now),
        )


def _drafts(then: ServerSnapshot, now: ServerSnapshot) -> tuple[float, float] | None:
    drafted = now.draft_tokens - then.draft_tokens
    accepted = now.accepted_draft_tokens - then.accepted_draft_tokens
    written = now.generated_tokens - then.generated_tokens
    return (
        (written / (written - accepted), accepted / drafted) if drafted > 0 and written > accepted else None
    )


def _median_and_95th(then: Buckets, now: Buckets) -> tuple[float, float] | None:
    median, high = quantile(then, now, 0.5), quantile(then, now, 0.95)
    return None if median is None or high is None else (median, high)


def quantile(then: Buckets, now: Buckets, share: float) -> float | None:
    """Return the value below which `share` of the observations between the two lie, linear within a bucket,
    or None if there are none. A value beyond the last finite edge counts as that edge."""
    new = [after - before for (_, before), (_, after) in zip(then, now, strict=False)]
    if len(then) != len(now) or not new or new[-1] <= 0:
        return None
    wanted = share * new[-1]
    edges = [float(edge.replace("+", "")) for edge, _ in now]
    for (low, below), (edge, up_to) in pairwise([(0.0, 0.0), *zip(edges, new, strict=True)]):
        if up_to >= wanted:
            if edge == float("inf"):
                return low
            return low + (edge - low) * (wanted - below) / max(up_to - below, 1e-9)
    return edges[-1]


_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], columns: int) -> str:
    """Return the last values as bars from 0 to the highest of them."""
    shown = values[-columns:] if columns > 0 else ()
    highest = max(shown, default=0.0)
    if highest <= 0:
        return _LEVELS[0] * len(shown)
    return "".join(_LEVELS[min(7, int(8 * max(0.0, value) / highest))] for value in shown)
