"""What one row's answer is held to: a grammar, and how far into it the answer has come.

The library is llguidance. It fails by itself, without an exception, where a grammar turns out to need more
than its limits while it is used; whatever goes wrong is kept in `failure` and ends that one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

_WORD_BITS = 32


class Constraint:
    """A matcher of its own for each row: `accept` moves it on."""

    def __init__(self, matcher: LLMatcher, output: Sequence[int] = ()) -> None:
        """`output`: what there is of the answer already."""
        self.matcher = matcher
        self.failure: str | None = None
        """Why the answer cannot go on; the mask is no use from then on."""
        try:
            if output and not matcher.consume_tokens(list(output)):
                self._fail("the answer so far is not in its grammar")
        except BaseException as error:
            self.note(error)

    def accept(self, token: int) -> None:
        """The answer's next token. Whatever comes behind the end of the grammar is not looked at."""
        if self.failure is not None:
            return
        try:
            if not self.matcher.is_stopped() and not self.matcher.consume_token(token):
                self._fail(f"token {token} is not in the grammar")
        except BaseException as error:
            self.note(error)

    def note(self, error: BaseException) -> None:
        """A failure that is this row's alone."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        # BaseException: a panic of the library, which is written in Rust, is no Exception.
        self.failure = f"the grammar library failed: {type(error).__name__}: {error}"

    def check(self, row: NDArray[np.int32]) -> None:
        """`row` is the mask that was made. One without a token would leave nothing to draw from."""
        if self.matcher.is_error():
            self._fail("the grammar is too complex here")
        elif not row.any():
            self.failure = "the grammar allows no token here"

    def _fail(self, what: str) -> None:
        said = self.matcher.get_error().split("\n", 1)[0]
        self.failure = f"{what} ({said})" if said else what


def allowed_tokens(constraints: Sequence[Constraint], vocabulary: int) -> NDArray[np.bool_]:
    """Which tokens may come next, (rows, vocabulary): all of them for a row that has failed."""
    masks = np.zeros((len(constraints), -(-vocabulary // _WORD_BITS)), np.int32)
    working = [(constraint, row) for row, constraint in enumerate(constraints) if constraint.failure is None]
    _fill(working, masks)
    for constraint, row in working:
        try:
            constraint.check(masks[row])
        except BaseException as error:
            constraint.note(error)
    for row, constraint in enumerate(constraints):
        if constraint.failure is not None:
            masks[row] = -1
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return bits.view(np.bool_)


def hold_ends(allowed: NDArray[np.bool_], ends: Sequence[int]) -> None:
    """`ends` are taken out of what one row is allowed, where others remain: a grammar that is at its end has
    none, and then it wins over `min_tokens`, for nothing could be drawn."""
    rest = allowed.copy()
    rest[list(ends)] = False
    if rest.any():
        allowed[:] = rest


def _fill(working: Sequence[tuple[Constraint, int]], masks: NDArray[np.int32]) -> None:
    if len(working) > 1:
        try:
            fill_next_token_bitmask_par(
                _threads(), [(constraint.matcher, row) for constraint, row in working], masks
            )
            return
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # Of one row; which one, they show one by one.
    for constraint, row in working:
        try:
            fill_next_token_bitmask(constraint.matcher, masks, row)
        except BaseException as error:
            constraint.note(error)


@cache
def _threads() -> LLExecutor:
    return LLExecutor()
