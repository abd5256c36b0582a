"""Sizes for people."""

from __future__ import annotations


def gigabytes(count: float, digits: int = 2) -> str:
    """Return a size in bytes as `4.6 GB`, `12 MB`, with this number of digits, or all before the point."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            scaled = count / size
            return f"{scaled:.{max(0, digits - len(str(int(scaled))))}f} {unit}"
    return f"{count:.0f} B"
