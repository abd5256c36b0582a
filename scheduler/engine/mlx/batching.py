"""How much of the batch a model may use: what the check at load (`load_check.py`) decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Fallback: TypeAlias = Literal["no_drafts", "equal_chunks", "copied_prefixes", "no_prefixes", "one_row"]
"""Fallbacks in the order of their cost: a step computes one token a row; prefill chunks of one length; each
row has a copy of its prefix; no prefix cache; the model runs once for each row, and requests still take turns
in every step."""


@dataclass(frozen=True, slots=True)
class Batching:
    """What a model may use of the batch: all of it by default. Each False is a fallback."""

    padded: bool = True
    """Prefill chunks of different lengths run in one call: shorter ones are padded."""
    in_place: bool = True
    """Rows attend to shared prefixes in place."""
    prefixes: bool = True
    batched: bool = True
    drafts: bool = True
    """A step may compute several tokens of a row, and take the last ones back."""

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """Return the fallbacks that apply. `one_row` stands for all others, and `no_prefixes` for
        `copied_prefixes`."""
        if not self.batched:
            return ("one_row",)
        found: list[Fallback] = [] if self.drafts else ["no_drafts"]
        if not self.padded:
            found.append("equal_chunks")
        if not self.prefixes:
            found.append("no_prefixes")
        elif not self.in_place:
            found.append("copied_prefixes")
        return tuple(found)


ONE_ROW = Batching(padded=False, in_place=False, prefixes=False, batched=False, drafts=False)
