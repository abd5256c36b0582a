"""One figure of a report, with the formula that made it, and how its value is written for a reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["less", "more", "none"]

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` is None where the run has nothing to compute it from."""

    name: str
    """Stable: baselines and ratios refer to it."""
    label: str
    value: float | None
    unit: str
    """s, 1/s, tokens/s, share, tokens, requests, sessions, index, ratio, cores."""
    formula: str
    better: Better
    family: str
    """What the formula defines: all percentiles of TTFT share one."""
    samples: int | None = None
    """How many a percentile was taken over."""

    @property
    def text(self) -> str:
        return written(self.value, self.unit)


def written(value: float | None, unit: str) -> str:
    """With its unit, to three digits."""
    if value is None:
        return NOTHING
    match unit:
        case "s":
            return _seconds(value)
        case "share":
            return f"{value * 100:.1f} %"
        case "index":
            return f"{value:.3f}"
        case "ratio":
            return f"{_digits(value)}×"
        case _:
            return f"{_digits(value)} {unit}"


def _seconds(value: float) -> str:
    if abs(value) < 1:
        return f"{_digits(value * 1000)} ms"
    return f"{_digits(value)} s"


def _digits(value: float) -> str:
    """Three significant digits, and never an exponent."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.095 else f"{value:.3f}"
