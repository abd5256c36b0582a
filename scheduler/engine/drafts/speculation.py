"""Which tokens are drafted for which rows, and how many: a pure choice over what was learned.

A draft is verified, never trusted: the draw at each place depends on the seed and the position alone, so a
drafted token is kept if it is the one that the row would have drawn, and the tokens are those of the plain
run, greedy or sampled. What is at stake is time. A step with drafts costs more than one without, and returns
its tokens before the next is planned (no overlap), so drafts are verified where the tokens that are expected
to be accepted outweigh the cost that was measured (`verify_costs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from scheduler.engine.drafts.row_drafts import FIRST_CHANCE, SOURCES, Chances, RowDrafts, Source, common
from scheduler.engine.drafts.verify_costs import DRAFTED, VerifyCosts
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.counters import DraftCounters

LEAST_GAIN = 1.05
"""A step with drafts must be expected to give this many times the tokens a second."""
MOST_DELAY = 1.5
"""A row without drafts waits at most this many times a plain step for its token."""

DraftTokens: TypeAlias = Mapping[int, Sequence[int]]
"""Tokens, drafted or written, by request id."""
NO_DRAFTS: DraftTokens = MappingProxyType({})


class Draft(msgspec.Struct, frozen=True):
    """Verify `tokens` as the next ones of this row."""

    request_id: int
    tokens: tuple[int, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a row may write next. `chance`: of each token to be chosen, if those before it are."""

    draft: Draft
    chance: float
    behind_pending: bool = False
    """Whether it follows a token that is sampled and not returned yet, which must be as expected, too."""

    def expected_tokens(self, drafted: int) -> float:
        """Return how many of the first `drafted` tokens will be accepted, on average."""
        found, reached = 0.0, self.chance if self.behind_pending else 1.0
        for _ in self.draft.tokens[:drafted]:
            reached *= self.chance
            found += reached
        return found


def chosen(
    proposals: Sequence[Proposal], rows: int, costs: VerifyCosts, most_tokens: int
) -> tuple[Draft, ...]:
    """Return the drafts of a step in which `rows` rows decode: those with the most expected tokens a second,
    or none. `most_tokens`: bound on the rows times the tokens that are computed of each."""
    best, most = 0, rows * LEAST_GAIN
    for drafted in DRAFTED if proposals else ():
        cost = costs.ratio(rows, drafted)
        if rows * (1 + drafted) > most_tokens or (cost > MOST_DELAY and len(proposals) < rows):
            break
        tokens = rows + sum(proposal.expected_tokens(drafted) for proposal in proposals)
        if tokens / cost > most:
            best, most = drafted, tokens / cost
    return tuple(
        Draft(one.draft.request_id, one.draft.tokens[:best], one.draft.source) for one in proposals if best
    )


@dataclass(slots=True)
class Speculation:
    """The state behind the choice: what each row may write, what was accepted, what it cost."""

    costs: VerifyCosts = field(default_factory=VerifyCosts)
    _rows: dict[int, RowDrafts] = field(default_factory=dict)
    _chances: Chances = field(default_factory=lambda: dict.fromkeys(SOURCES, FIRST_CHANCE))
    _tallies: dict[str, tuple[int, int]] = field(default_factory=dict)
    _steps: int = 0

    @property
    def counters(self) -> DraftCounters:
        return DraftCounters(self._steps, dict(self._tallies))

    def proposals(
        self, rows: Iterable[EngineSequence], forced: DraftTokens, has_pending: bool
    ) -> list[Proposal]:
        """Return what the rows that decode may write next. `forced`: by their grammars. `has_pending`: the
        last token of each is not known yet."""
        found = (self._proposal(row, forced.get(row.request_id, ()), has_pending) for row in rows)
        return [one for one in found if one is not None]

    def _proposal(self, row: EngineSequence, forced: Sequence[int], has_pending: bool) -> Proposal | None:
        count = min(DRAFTED[-1], row.submit.max_tokens - row.generated_tokens - 1 - has_pending)
        if count <= 0:
            return None
        known = self._rows.get(row.request_id)
        if known is None:
            known = self._rows[row.request_id] = RowDrafts.of(row, self._chances)
        return max(
            (
                Proposal(Draft(row.request_id, drafted, source), known.chances[source], has_pending)
                for source, tokens in known.candidates(row, forced, count + has_pending)
                if (drafted := tokens[has_pending:])
            ),
            key=lambda one: one.expected_tokens(DRAFTED[-1]),
            default=None,
        )

    def count(self, drafts: Sequence[Draft], written: DraftTokens) -> None:
        """Count how many of these drafts were accepted. `written`: the tokens that each row got."""
        self._steps += 1
        for draft in drafts:
            if (got := written.get(draft.request_id)) is None:
                continue  # The row failed, or was refused.
            proposed, accepted = len(draft.tokens), common(draft.tokens, got)
            before = self._tallies.get(draft.source, (0, 0))
            self._tallies[draft.source] = before[0] + proposed, before[1] + accepted

    def ended(self, request_id: int) -> None:
        """Forget a row."""
        self._rows.pop(request_id, None)
