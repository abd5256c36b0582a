"""How long an engine may take to its READY: learnt from those that have loaded. Pure."""

from __future__ import annotations

_FLOOR_SECONDS = 300.0
"""Of imports and a small model: 4 s of work took 60 s beside six other programs on two processors."""
_MULTIPLE = 20.0
"""Of the slowest load so far: its weights may have been in the page cache, where the next one's are not."""


def load_limit_seconds(slowest_seconds: float | None, ceiling_seconds: float) -> float:
    """`slowest_seconds` None: none has loaded yet, and only the operator's ceiling is known."""
    if slowest_seconds is None:
        return ceiling_seconds
    return min(ceiling_seconds, max(_FLOOR_SECONDS, _MULTIPLE * slowest_seconds))
