"""What one row may write next: its sources, and how often it has chosen what they proposed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from scheduler.engine import sequence as engine
from scheduler.engine.drafts.ngram_table import NgramTable

Source: TypeAlias = Literal["grammar", "prediction", "long_match", "short_match"]
"""Where a draft comes from: what the grammar forces; the client's prediction; what followed an earlier place
of the text's last 8, or last 3, tokens. The text of a turn has the session's earlier answers in it."""
SOURCES: tuple[Source, ...] = ("grammar", "prediction", "long_match", "short_match")
_LONG, _SHORT = 8, 3
_FORGETTING = 0.8
"""Factor of what is known of a row's acceptance, for each drafted token that was judged."""
_MOST_REST_TOKENS = 63


@dataclass(slots=True)
class RowDrafts:
    """`chances`: of its drafts to be chosen, by source. After drafts of which none was chosen the row rests
    for some tokens, each time for twice as many."""

    long: NgramTable
    short: NgramTable
    prediction: array[int]
    predicted: NgramTable
    chances: dict[Source, float]
    accepted_prediction: int = 0
    rejected_prediction: int = 0
    _rest_tokens: int = 0
    _proposed_at: int = 0
    _next_at: int = 0

    @classmethod
    def of(cls, row: engine.Sequence, chances: dict[Source, float]) -> RowDrafts:
        """`chances`: those of all rows so far."""
        size, prediction = len(row.tokens) + row.submit.max_tokens, array("I", row.submit.prediction)
        predicted = NgramTable(_SHORT, len(prediction) + 1)
        predicted.extend(prediction)
        return cls(NgramTable(_LONG, size), NgramTable(_SHORT, size), prediction, predicted, dict(chances))

    def candidates(
        self, row: engine.Sequence, forced: Sequence[int], count: int
    ) -> Iterator[tuple[Source, tuple[int, ...]]]:
        """Return up to `count` tokens that may follow the row's, by each source that knows some."""
        if forced:
            yield "grammar", tuple(forced[:count])
        if row.generated_tokens < self._next_at:
            return
        self._proposed_at = row.generated_tokens
        if self.prediction and (tokens := self.prediction[self._predicted_from(row) :][:count]):
            yield "prediction", tuple(tokens)
        own: tuple[tuple[Source, NgramTable], ...] = (("long_match", self.long), ("short_match", self.short))
        for source, table in own:
            table.extend(row.tokens)
            if (start := table.find(row.tokens, row.tokens)) is not None:
                yield source, _continued(row.tokens, start, count)

    def _predicted_from(self, row: engine.Sequence) -> int:
        """Return where the answer is in the prediction, or its end if it is not in it."""
        written = row.generated_tokens
        if written < _SHORT:
            begins = row.tokens[len(row.tokens) - written :] == self.prediction[:written]
            return written if begins else len(self.prediction)
        found = self.predicted.find(self.prediction, row.tokens)
        return len(self.prediction) if found is None else found

    def judge(self, source: Source, proposed: int, accepted: int) -> None:
        judged = min(accepted + 1, proposed)
        self.chances[source] = moved(self.chances[source], accepted, judged)
        if source == "prediction":
            self.accepted_prediction += accepted
            self.rejected_prediction += proposed - accepted
        if source != "grammar":
            self._rest_tokens = 0 if accepted else min(_MOST_REST_TOKENS, 2 * self._rest_tokens + 1)
            self._next_at = self._proposed_at + accepted + 1 + self._rest_tokens


def moved(chance: float, accepted: int, judged: int, slowness: int = 1) -> float:
    """Return the chance after `accepted` of `judged` tokens were chosen."""
    weight = (1.0 - _FORGETTING**judged) / slowness
    return chance + weight * (accepted / judged - chance)


def _continued(text: array[int], start: int, count: int) -> tuple[int, ...]:
    """Return `count` tokens of the text from `start` on. Where it ends, what has repeated goes on."""
    tokens = text[start : start + count].tolist()
    while len(tokens) < count:
        tokens += tokens[: count - len(tokens)]
    return tuple(tokens)
