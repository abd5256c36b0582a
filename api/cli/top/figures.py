"""Rates and percentiles of the last seconds, as the server's history has them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from api.cli.top.snapshots import Column, History, ServerSnapshot

WINDOW_SAMPLES = 10
"""Samples of a second over which rates are averaged; the server's percentiles are of as many."""
_KEPT_SAMPLES = 300
_KEPT_TOTALS = 20
"""Snapshots, of which there are two a second."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the last seconds. One is None if nothing was observed for it."""

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
    """Rates of each second, the oldest first."""
    drafts: tuple[float, float] | None = None
    """Tokens that a row got in a step on average, and the accepted share of the drafted ones."""


class RecentSamples:
    """What one stream of snapshots has brought so far: the first has minutes, each other what is new."""

    def __init__(self) -> None:
        self._columns: dict[str, list[float | None]] = {name: [] for name in History.__struct_fields__}
        self._totals: deque[ServerSnapshot] = deque(maxlen=_KEPT_TOTALS)

    def add(self, now: ServerSnapshot) -> None:
        for name, column in self._columns.items():
            column += getattr(now.history, name)
            del column[:-_KEPT_SAMPLES]
        self._totals.append(now)

    def figures(self) -> Figures:
        """Raise IndexError if there is no snapshot."""
        output, prefill, cached = (self._last(name) for name in ("generated", "prefilled", "cached"))
        prompt = sum(prefill) + sum(cached)
        return Figures(
            output_rate=_mean(output),
            prefill_rate=_mean(prefill),
            cached_rate=_mean(cached),
            cached_share=sum(cached) / prompt if prompt else None,
            ttft_seconds=self._pair("ttft_p50", "ttft_p95"),
            itl_seconds=self._pair("itl_p50", "itl_p95"),
            output_rates=tuple(_numbers(self._columns["generated"])),
            drafts=self._drafts(),
        )

    def _last(self, name: str) -> list[float]:
        return _numbers(self._columns[name][-WINDOW_SAMPLES:])

    def _pair(self, median: str, high: str) -> tuple[float, float] | None:
        last = _numbers(self._columns[median][-1:]) + _numbers(self._columns[high][-1:])
        return (last[0], last[1]) if len(last) == 2 else None

    def _drafts(self) -> tuple[float, float] | None:
        then, now = self._totals[0], self._totals[-1]
        drafted = now.draft_tokens - then.draft_tokens
        accepted = now.accepted_draft_tokens - then.accepted_draft_tokens
        written = now.generated_tokens - then.generated_tokens
        if drafted <= 0 or written <= accepted:
            return None
        return written / (written - accepted), accepted / drafted


def _numbers(column: Column) -> list[float]:
    return [value for value in column if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], columns: int) -> str:
    """Return the last values as bars from 0 to the highest of them."""
    shown = values[-columns:] if columns > 0 else ()
    highest = max(shown, default=0.0)
    if highest <= 0:
        return _LEVELS[0] * len(shown)
    return "".join(_LEVELS[min(7, int(8 * max(0.0, value) / highest))] for value in shown)
