"""The grammar of one row's answer, and the answer's position in it.

The library is llguidance. It may fail without an exception, when a grammar exceeds its limits while it is
used; every failure is kept in `failure` and ends that request alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

_WORD_BITS = 32
SLOW_MASK_SECONDS = 0.05
"""Time of the engine's thread, while all rows wait: several decode steps of a small model. With a vocabulary
of 150,000, masks of real schemas take 0.2 ms, those of hard expressions up to 60 ms until their automaton is
built."""
_LONGEST_CUT_TOKENS = 3
"""A character has at most four bytes, so a cut one at most three tokens."""
MAX_SLOW_MASKS = 8
"""Bound on slow masks in one answer; then the row fails, and has delayed the others by about half a second.
Building an automaton takes a few."""


class Constraint:
    """One row's own matcher; `accept` advances it."""

    def __init__(
        self,
        matcher: LLMatcher,
        output: Sequence[int] = (),
        clock: Callable[[], float] = time.thread_time,
        cut_by: int | None = None,
    ) -> None:
        """`output`: the answer so far, which is consumed and not kept. `clock`: CPU seconds of this thread,
        so that a busy machine makes no mask slow. `cut_by`: a token that may be forced, also in the middle of
        a character: the first of reasoning's end mark."""
        self.matcher = matcher
        self._cut_by = cut_by
        self.timed_alone = False
        """Whether its last mask was slow, or computed together with a slow one: the next is timed by
        itself."""
        self._clock = clock
        self._slow_masks = 0
        self._seen = len(output)
        self._foresees = True
        """Whether it may be asked what is forced: until the library fails at it, or is slow."""
        self.failure: str | None = None
        """Why the answer cannot continue, or None. With a failure its masks are invalid."""
        self.at_limit = False
        """Whether the grammar is why: it met a limit of the library's, or of time, or allows nothing.
        Otherwise the answer has a token that its masks did not allow."""
        try:
            if output and not self._consume(list(output)):
                self._reject("the answer so far is not in its grammar")
        except BaseException as error:
            self.note(error)

    def accept_at(self, position: int, token: int) -> None:
        """Consume the answer's token at `position` (from 0); nothing happens if it is known. Tokens after the
        end of the grammar are ignored."""
        assert position <= self._seen, "a token of the answer was left out"
        if position < self._seen:
            return
        self._seen += 1
        if self.failure is not None:
            return
        try:
            if not self.matcher.is_stopped() and not self._consume([token]):
                self._reject(f"token {token} is not in the grammar")
        except BaseException as error:
            self.note(error)

    def forced_from(self, position: int) -> tuple[int, ...]:
        """Return the tokens that the grammar forces from `position` on, as the tokenizer would write them;
        none unless the answer is known exactly up to there."""
        if position != self._seen or self.failure is not None or not self._foresees:
            return ()
        started = self._clock()
        try:
            return tuple(self.matcher.compute_ff_tokens())
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # No draft is worth a request: if the matcher is broken, its next mask says so.
            self._foresees = False
            return ()
        finally:
            # All rows wait for it, and only to save time.
            self._foresees &= self._clock() - started <= SLOW_MASK_SECONDS

    def _consume(self, tokens: list[int]) -> bool:
        if self._cut_by is None:
            return bool(self.matcher.consume_tokens(tokens))
        consumed = 0
        while (consumed := consumed + self.matcher.try_consume_tokens(tokens[consumed:])) < len(tokens):
            if tokens[consumed] != self._cut_by or not self._consume_after_cut(self._cut_by):
                return False
            consumed += 1
        return True

    def _consume_after_cut(self, token: int) -> bool:
        """The grammar knows whole characters only: forget the beginning of one before `token`. Reasoning is
        free text, so nothing depends on it."""
        return any(
            self.matcher.rollback(1) and self.matcher.try_consume_tokens([token])
            for _ in range(_LONGEST_CUT_TOKENS)
        )

    def note(self, error: BaseException) -> None:
        """Record a failure of this row alone. Re-raise KeyboardInterrupt and SystemExit."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        # BaseException: a panic of the library, which is written in Rust, is no Exception.
        self._end(f"the grammar library failed: {type(error).__name__}: {error}")

    def fill(self, masks: NDArray[np.int32], row: int) -> None:
        """Compute its mask into `masks[row]`, by itself and timed."""
        started = self._clock()
        try:
            fill_next_token_bitmask(self.matcher, masks, row)
        except BaseException as error:
            self.note(error)
        self.timed_alone = self._clock() - started > SLOW_MASK_SECONDS
        self._slow_masks += self.timed_alone
        if self._slow_masks >= MAX_SLOW_MASKS and self.failure is None:
            limit_ms = round(1000 * SLOW_MASK_SECONDS)
            self._end(f"the grammar is too slow: {MAX_SLOW_MASKS} tokens took over {limit_ms} ms each")

    def check(self, row: NDArray[np.int32]) -> None:
        """Fail if `row`, the mask just computed, is invalid or allows no token."""
        if self.matcher.is_error():
            self._end_by_library()
        elif not row.any():
            self._end(_NOTHING)

    def _reject(self, what: str) -> None:
        """Fail, because the library did not consume a token. Unless it met a limit there, it was `what`."""
        if self.matcher.is_error() and _UNFIT not in self.matcher.get_error():
            self._end_by_library()
        else:
            self.failure = what

    def _end_by_library(self) -> None:
        detail = self.matcher.get_error().split("\n", 1)[0]
        self._end(_NOTHING if _NO_TEXT in detail else f"the grammar is too complex here ({detail})")

    def _end(self, why: str) -> None:
        self.failure, self.at_limit = why, True


_NOTHING = "the grammar allows nothing after this answer, not even its end"
_NO_TEXT, _UNFIT = "NoExtension", "satisfy the grammar"
"""In errors of the library: no text can follow; a token is not in the mask."""


def allowed_tokens(
    constraints: Sequence[Constraint], vocabulary: int, clock: Callable[[], float] = time.perf_counter
) -> NDArray[np.bool_]:
    """Return which tokens may come next, (rows, vocabulary): all of them for a failed row. `clock`:
    wall-clock seconds, for masks that several threads compute together."""
    masks = np.zeros((len(constraints), -(-vocabulary // _WORD_BITS)), np.int32)
    working = [(constraint, row) for row, constraint in enumerate(constraints) if constraint.failure is None]
    _fill(working, masks, clock)
    for constraint, row in working:
        try:
            if constraint.failure is None:
                constraint.check(masks[row])
        except BaseException as error:
            constraint.note(error)
    for row, constraint in enumerate(constraints):
        if constraint.failure is not None:
            masks[row] = -1
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return bits.view(np.bool_)


def mask_stops(allowed: NDArray[np.bool_], stops: Sequence[int]) -> None:
    """Remove `stops` from one row's allowed tokens, if others remain. A grammar at its end allows nothing
    else, and then it wins over `min_tokens`: otherwise no token could be drawn."""
    rest = allowed.copy()
    rest[list(stops)] = False
    if rest.any():
        allowed[:] = rest


def _fill(
    working: Sequence[tuple[Constraint, int]], masks: NDArray[np.int32], clock: Callable[[], float]
) -> None:
    """Compute the masks together, by several threads, which does not show whose mask was slow: if one was,
    the next masks of all of them are computed one by one, and the fast ones are computed together again."""
    together = [(constraint, row) for constraint, row in working if not constraint.timed_alone]
    alone = [(constraint, row) for constraint, row in working if constraint.timed_alone]
    if len(together) < 2 or not _fill_together(together, masks, clock):
        alone = list(working)
    for constraint, row in alone:
        constraint.fill(masks, row)


def _fill_together(
    rows: Sequence[tuple[Constraint, int]], masks: NDArray[np.int32], clock: Callable[[], float]
) -> bool:
    """Return False if the library raised for one of them; computing them one by one shows which."""
    started = clock()
    try:
        fill_next_token_bitmask_par(
            _threads(), [(constraint.matcher, row) for constraint, row in rows], masks
        )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return False
    if clock() - started > SLOW_MASK_SECONDS:
        for constraint, _ in rows:
            constraint.timed_alone = True
    return True


@cache
def _threads() -> LLExecutor:
    return LLExecutor()
