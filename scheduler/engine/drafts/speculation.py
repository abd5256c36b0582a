"""Which tokens are drafted for which rows, and how many: the choice is a pure function of what was learned.

A draft is verified, never trusted: the draw at each place depends on the seed and the position alone, so a
drafted token is kept if it is the one that the row would have drawn, and the tokens are those of the plain run,
greedy or sampled. What is at stake is time. A step with drafts costs more than one without, and returns its
tokens before the next is planned (no overlap), so drafts are verified where the tokens that are expected to be
accepted outweigh the cost that was measured (`verify_costs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from scheduler.engine import sequence as engine
from scheduler.engine.drafts.ngram_table import NgramTable
from scheduler.engine.drafts.verify_costs import DRAFTED, VerifyCosts
from scheduler.shared.wire_struct import WireStruct

Source: TypeAlias = Literal["long_match", "short_match"]
"""Where a draft comes from: behind an earlier place of the text's last 8, or last 3, tokens."""
_ORDERS: tuple[tuple[Source, int], ...] = (("long_match", 8), ("short_match", 3))

LEAST_GAIN = 1.05
"""A step with drafts must be expected to give this many times the tokens a second."""
MOST_DELAY = 1.5
"""A row without drafts waits at most this many times a plain step for its token."""
_FIRST_CHANCE = 0.5
_FORGETTING = 0.8
"""Factor of what is known of a row's acceptance, for each drafted token that was judged."""
_MOST_REST_TOKENS = 63


DraftTokens: TypeAlias = Mapping[int, Sequence[int]]
"""Drafted tokens by request id."""
NO_DRAFTS: DraftTokens = MappingProxyType({})


class Draft(WireStruct, frozen=True):
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


def chosen(proposals: Sequence[Proposal], rows: int, costs: VerifyCosts) -> tuple[Draft, ...]:
    """Return the drafts of a step in which `rows` rows decode: those with the most expected tokens a second, or
    none."""
    best, most = 0, rows * LEAST_GAIN
    for drafted in DRAFTED if proposals else ():
        cost = costs.ratio(rows, drafted)
        if cost > MOST_DELAY and len(proposals) < rows:
            break
        tokens = rows + sum(proposal.expected_tokens(drafted) for proposal in proposals)
        if tokens / cost > most:
            best, most = drafted, tokens / cost
    return tuple(
        Draft(one.draft.request_id, one.draft.tokens[:best], one.draft.source) for one in proposals if best
    )


@dataclass(slots=True)
class _RowDrafts:
    """What is known of one row. `chances`: of its drafts to be accepted, by source. After drafts of which none
    was accepted it is passed over for some tokens, each time for twice as many."""

    tables: dict[Source, NgramTable]
    chances: dict[Source, float]
    rest_tokens: int = 0
    proposed_at: int = 0
    """Generated tokens at the last proposal."""
    next_at: int = 0
    """Generated tokens from which on drafts are proposed again."""


@dataclass(slots=True)
class Tally:
    """Totals of one source since the engine started."""

    proposed_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class Speculation:
    """The state behind the choice: an index of each row's text, and what was accepted."""

    costs: VerifyCosts = field(default_factory=VerifyCosts)
    tallies: dict[Source, Tally] = field(default_factory=dict)
    steps: int = 0
    """Steps that verified drafts."""
    saved_seconds: float = 0.0
    """What plain steps would have taken for the same tokens, beyond what these took; negative if they took
    less."""
    _rows: dict[int, _RowDrafts] = field(default_factory=dict)
    _chances: dict[Source, float] = field(default_factory=lambda: dict.fromkeys(dict(_ORDERS), _FIRST_CHANCE))
    """Those of all rows, with which a new row begins."""

    def proposals(self, rows: Iterable[engine.Sequence], has_pending: bool) -> list[Proposal]:
        """Return what the rows that decode may write next. `has_pending`: the last token of each is not known
        yet."""
        rows = list(rows)
        if len(self._rows) > 2 * len(rows):
            known = {row.request_id for row in rows}
            self._rows = {number: row for number, row in self._rows.items() if number in known}
        found = (self._proposal(row, has_pending) for row in rows)
        return [one for one in found if one is not None]

    def _proposal(self, row: engine.Sequence, has_pending: bool) -> Proposal | None:
        known = self._rows.get(row.request_id)
        if known is None:
            size = len(row.tokens) + row.submit.max_tokens
            known = self._rows[row.request_id] = _RowDrafts(
                {source: NgramTable(order, size) for source, order in _ORDERS}, dict(self._chances)
            )
        most = min(DRAFTED[-1], row.submit.max_tokens - row.generated_tokens - 1 - has_pending)
        if most <= 0 or row.generated_tokens < known.next_at:
            return None
        known.proposed_at = row.generated_tokens
        for source, table in known.tables.items():
            table.extend(row.tokens)
            if (start := table.find(row.tokens)) is None:
                continue
            tokens = _continued(row, start, most + has_pending)[has_pending:]
            return Proposal(Draft(row.request_id, tokens, source), known.chances[source], has_pending)
        return None

    def learn(self, drafts: Sequence[Draft], written: Mapping[int, int], rows: int, seconds: float) -> None:
        """Learn from a step in which only decoding rows were computed. `written`: the tokens that each row got.
        `seconds`: since the end of the step before; 0 if unknown."""
        drafted = max((len(draft.tokens) for draft in drafts), default=0)
        self.costs.learn(seconds, rows, drafted)
        if not drafts:
            return
        self.steps += 1
        if plain := self.costs.plain_seconds(rows):
            self.saved_seconds += plain * sum(written.values()) / rows - seconds
        for draft in drafts:
            if got := written.get(draft.request_id, 0):
                self._judge(draft, got - 1)

    def _judge(self, draft: Draft, accepted: int) -> None:
        tally = self.tallies.setdefault(draft.source, Tally())
        tally.proposed_tokens += len(draft.tokens)
        tally.accepted_tokens += accepted
        judged = min(accepted + 1, len(draft.tokens))
        weight, share = 1.0 - _FORGETTING**judged, accepted / judged
        chance = self._chances[draft.source]
        self._chances[draft.source] = chance + weight / 8 * (share - chance)
        if (known := self._rows.get(draft.request_id)) is None:
            return
        chance = known.chances[draft.source]
        known.chances[draft.source] = chance + weight * (share - chance)
        known.rest_tokens = 0 if accepted else min(_MOST_REST_TOKENS, 2 * known.rest_tokens + 1)
        known.next_at = known.proposed_at + accepted + 1 + known.rest_tokens


def _continued(row: engine.Sequence, start: int, count: int) -> tuple[int, ...]:
    """Return `count` tokens of the text from `start` on. Where it ends there, what has repeated goes on."""
    tokens = row.tokens[start : start + count].tolist()
    while len(tokens) < count:
        tokens += tokens[: count - len(tokens)]
    return tuple(tokens)
