"""The known name that a mistyped one is close to, or none: an unlike one sends people astray."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_ALIKE = 0.75
"""Twice the common letters by all letters: `serv` and `serve` have 0.89, `mmap` and `media` 0.44."""


def close_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`; None if none is alike. Dashes before them count
    nothing."""
    bare = {one.lstrip("-"): one for one in known}
    return next((bare[near] for near in get_close_matches(name.lstrip("-"), bare, 1, _ALIKE)), None)
