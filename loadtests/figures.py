"""One figure of a report, with its formula, and how its value is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["less", "more", "none"]

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` is None if the run has no samples for it."""

    name: str
    """Stable: baselines and ratios refer to it."""
    label: str
    value: float | None
    unit: str
    """s, 1/s, tokens/s, share, tokens, requests, sessions, index, ratio, cores."""
    formula: str
    better: Better
    family: str
    """What the formula defines: all percentiles of TTFT are one family."""
    samples: int | None = None
    """The number of samples of a percentile."""

    @property
    def text(self) -> str:
        return written(self.value, self.unit)


def written(value: float | None, unit: str) -> str:
    """Return the value with its unit, to three digits."""
    if value is None:
        return NOTHING
    scale, shown_unit = _scale(value, unit)
    return f"{_digits(value * scale, unit)}{shown_unit}"


def written_range(middle: float, least: float, most: float, unit: str) -> str:
    """Return `209 (206–213) tokens/s`: one unit for all three."""
    scale, shown_unit = _scale(middle, unit)
    span = "–".join(_digits(end * scale, unit) for end in (least, most))
    return f"{_digits(middle * scale, unit)} ({span}){shown_unit}"


def _scale(value: float, unit: str) -> tuple[float, str]:
    match unit:
        case "s":
            return (1000, " ms") if abs(value) < 0.9995 else (1, " s")
        case "share":
            return 100, " %"
        case "ratio":
            return 1, "×"
        case "index" | "":
            return 1, ""
        case _:
            return 1, f" {unit}"


_COUNTS = frozenset({"requests", "tokens", "sessions", "preemptions"})


def _digits(value: float, unit: str) -> str:
    """Return three significant digits, never an exponent."""
    size = abs(value)
    if size >= 99.95 or (unit in _COUNTS and value == int(value)):
        return f"{value:,.0f}".replace(",", "\u202f")
    if unit == "share":
        return f"{value:.1f}"
    if unit == "index":
        return f"{value:.3f}"
    return (
        f"{value:.1f}" if size >= 9.995 else f"{value:.2f}" if size >= 0.0995 or size == 0 else f"{value:.3f}"
    )
