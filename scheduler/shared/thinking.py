"""The thinking budget of one answer, by token ids.

Its state is a function of the budget and the answer's ids so far, and of nothing else: a preempted or resumed
answer continues with what it would have had. The engine forces tokens by it, the server counts reasoning by
it.

A budget of N leaves at most N tokens between opening and end marks, over all reasoning of the answer. When
they are spent the end mark is forced, token by token: what the model has begun of it is completed. From then
on no reasoning begins: the opening mark is masked, and where a grammar demands it, the end mark follows at
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from scheduler.errors import RequestRefused
from scheduler.shared.messages import ThinkingBudget


class _Phase(Enum):
    BEFORE = auto()
    """Reasoning may begin."""
    INSIDE = auto()
    PASSED = auto()
    """The text has begun, in which an opening mark is text, too."""


class Held(NamedTuple):
    """A token that may not come next, because it would begin reasoning again."""

    token: int
    after: int | None
    """If set, `token` is forbidden only where the unknown token before it is this one."""


class ThinkingLimit:
    """One answer's state. Feed it every token in order."""

    def __init__(self, budget: ThinkingBudget, output: Iterable[int] = ()) -> None:
        """Read `output`, the answer so far, and do not keep it."""
        self._budget = budget
        self._longest = max(map(len, _marks(budget)))
        self._phase = _Phase.INSIDE if budget.opens else _Phase.BEFORE
        self._tail: list[int] = []
        """The last tokens of this phase, as many as the longest mark has."""
        self._inside = 0
        """Tokens since the opening mark."""
        self._in_call = False
        """Whether a tool call has begun within this reasoning."""
        self._completed = 0
        """Tokens of reasoning that has ended."""
        self._has_ended = False
        self.seen = 0
        """How many tokens of the answer are known."""
        for token in output:
            self.accept(token)

    @property
    def reasoning_tokens(self) -> int:
        """Return tokens between opening and end marks. A mark that is begun counts until it is complete."""
        return self._completed + self._inside

    @property
    def forced(self) -> int | None:
        """Return the next token of the answer, if it is forced."""
        if self._phase is not _Phase.INSIDE or self._left() != 0:
            return None
        return self._budget.end[_begun(self._tail, self._budget.end)]

    def may_act_after(self, tokens: int) -> bool:
        """Return whether the token behind `tokens` unknown ones may be forced, so that those must be known
        first. The mask of `held` does not need to know them."""
        free = self._free_tokens()
        return free is not None and free <= tokens

    def held(self, unknown: int) -> Held | None:
        """Return the token that may not come behind the next `unknown` tokens (0 or 1), if there is one."""
        start, held = self._budget.start, self._budget.held
        if not self._closed:
            return None
        before = start[: held - unknown] if held >= unknown else ()
        if not _ends_with(self._tail, before):
            return None
        return Held(start[held], start[held - 1] if unknown and held else None)

    def accept_at(self, position: int, token: int) -> None:
        """Take the answer's token at `position` (from 0), unless it is known."""
        assert position <= self.seen, "a token of the answer was left out"
        if position == self.seen:
            self.accept(token)

    def accept(self, token: int) -> None:
        """Take the answer's next token."""
        self.seen += 1
        self._tail.append(token)
        if len(self._tail) > self._longest:
            del self._tail[0]
        match self._phase:
            case _Phase.INSIDE:
                self._inside += 1
                self._look_for_end()
            case _Phase.BEFORE:
                self._look_for_start(token)
            case _Phase.PASSED:
                pass

    def _look_for_start(self, token: int) -> None:
        start = self._budget.start
        if _ends_with(self._tail, start):
            self._phase, self._inside = _Phase.INSIDE, 0
            self._tail.clear()
        elif not self._budget.anywhere and tuple(self._tail) != start[: len(self._tail)]:
            if len(self._tail) == 1 and token in self._budget.blanks:
                self._tail.clear()
            else:
                self._phase = _Phase.PASSED

    def _look_for_end(self) -> None:
        budget = self._budget
        if _ends_with(self._tail, budget.end):
            self._end(len(budget.end))
        elif self._in_call and _ends_with(self._tail, budget.call_end):
            self._end(len(budget.call_end))
        elif budget.call_start and _ends_with(self._tail, budget.call_start):
            self._in_call = True

    def _end(self, mark_tokens: int) -> None:
        self._completed += self._inside - mark_tokens
        self._phase, self._inside, self._has_ended = _Phase.BEFORE, 0, True
        self._in_call = False
        self._tail.clear()

    @property
    def _closed(self) -> bool:
        """Return whether the budget is spent, and its last reasoning has ended."""
        return self._has_ended and self._phase is not _Phase.INSIDE and self._left() == 0

    def _left(self) -> int | None:
        tokens = self._budget.tokens
        return None if tokens is None else max(0, tokens - self.reasoning_tokens)

    def _free_tokens(self) -> int | None:
        """Return how many tokens come at least, whatever they are, before one is forced, or None if none will
        be."""
        left = self._left()
        if left is None or self._phase is _Phase.PASSED or self._closed:
            return None
        return left if self._phase is _Phase.INSIDE else left + 1


def _ends_with(tail: Sequence[int], mark: Sequence[int]) -> bool:
    return not mark or (bool(tail) and tail[-1] == mark[-1] and tuple(tail[-len(mark) :]) == tuple(mark))


def _marks(budget: ThinkingBudget) -> list[tuple[int, ...]]:
    return [budget.start, budget.end, budget.call_start, budget.call_end]


def _begun(tail: Sequence[int], mark: Sequence[int]) -> int:
    """Return how many tokens of `mark` the tail ends with; fewer than all."""
    return next(
        length for length in range(min(len(tail), len(mark) - 1), -1, -1) if _ends_with(tail, mark[:length])
    )


def check_marks(budget: ThinkingBudget | None, vocabulary: int) -> None:
    """Raise RequestRefused for marks that cannot be forced or found."""
    if budget is None:
        return
    paired = bool(budget.call_start) == bool(budget.call_end)
    if not (budget.start and budget.end and paired and 0 <= budget.held < len(budget.start)):
        raise RequestRefused("a mark around reasoning, or around a call, is empty")
    if not all(0 <= token < vocabulary for mark in _marks(budget) for token in mark):
        raise RequestRefused(f"a mark around reasoning is outside the vocabulary of {vocabulary}")
