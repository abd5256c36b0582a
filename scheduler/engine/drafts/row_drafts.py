"""What one row may write next: its sources, and how often it has chosen what they proposed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from scheduler.engine.drafts.ngram_table import NgramTable
from scheduler.engine.sequence import EngineSequence

Source: TypeAlias = Literal["grammar", "long_match", "short_match"]
"""Where a draft comes from: what the grammar forces; what followed an earlier place of the text's last 8, or
last 3, tokens. The text of a turn has the session's earlier answers in it."""
SOURCES: tuple[Source, ...] = ("grammar", "long_match", "short_match")
_LONG, _SHORT = 8, 3
_FORGETTING = 0.8
"""Factor of what is known of a row's acceptance, for each expected token that was written."""
_SLOWNESS = 8
"""The chances with which a row begins follow those of all rows this many times as slowly."""
FIRST_CHANCE = 0.5

Chances: TypeAlias = dict[Source, float]
"""How likely a token is the one that its source expects, if those before it were."""


@dataclass(slots=True)
class RowDrafts:
    """What one row may write next. What a source expects is compared with what the row writes, also if it was
    not verified. So a row whose text does not repeat costs nothing, and one that begins to copy is noticed
    without a draft."""

    long: NgramTable
    short: NgramTable
    everyone: Chances
    """The chances of all rows, with which a row begins."""
    chances: Chances
    _expected: list[tuple[Source, tuple[int, ...]]] = field(default_factory=list)
    _expected_at: int = 0
    """The position in the row's text at which it is expected."""

    @classmethod
    def of(cls, row: EngineSequence, everyone: Chances) -> RowDrafts:
        size = len(row.tokens) + row.submit.max_tokens
        return cls(NgramTable(_LONG, size), NgramTable(_SHORT, size), everyone, dict(everyone))

    def candidates(
        self, row: EngineSequence, forced: Sequence[int], count: int
    ) -> Sequence[tuple[Source, tuple[int, ...]]]:
        """Return up to `count` tokens that may follow the row's, by each source that knows some."""
        self._look_back(row)
        self._expected = [(source, tokens) for source, tokens in self._sources(row, forced, count) if tokens]
        self._expected_at = len(row.tokens)
        return self._expected

    def _sources(
        self, row: EngineSequence, forced: Sequence[int], count: int
    ) -> Iterator[tuple[Source, tuple[int, ...]]]:
        yield "grammar", tuple(forced[:count])
        own: tuple[tuple[Source, NgramTable], ...] = (("long_match", self.long), ("short_match", self.short))
        for source, table in own:
            table.extend(row.tokens)
            if (start := table.find(row.tokens)) is not None:
                yield source, _continued(row.tokens, start, count)

    def _look_back(self, row: EngineSequence) -> None:
        for source, expected in self._expected:
            written = row.tokens[self._expected_at : self._expected_at + len(expected)]
            right = common(expected, written)
            if judged := min(len(written), right + 1):
                weight, share = 1.0 - _FORGETTING**judged, right / judged
                self.chances[source] += weight * (share - self.chances[source])
                self.everyone[source] += weight / _SLOWNESS * (share - self.everyone[source])


def common(expected: Sequence[int], written: Sequence[int]) -> int:
    """Return how many of the first tokens are equal."""
    pairs = enumerate(zip(expected, written, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(expected), len(written)))


def _continued(text: array[int], start: int, count: int) -> tuple[int, ...]:
    """Return `count` tokens of the text from `start` on. If the text ends before, the tokens repeat."""
    tokens = text[start : start + count].tolist()
    while len(tokens) < count:
        tokens += tokens[: count - len(tokens)]
    return tuple(tokens)
