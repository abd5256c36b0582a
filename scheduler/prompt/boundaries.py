"""Where the messages of a prompt begin and end, seen in its tokens.

Every chat template marks its turns with special tokens. Which ones differs from model to model; that a
run of them begins where a text ends does not. So no template is parsed and nothing is rendered twice.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_BOUNDARIES = 256
"""A prompt of thousands of turns: the first ones and the latest matter."""


def boundaries_of(tokens: Sequence[int], special: frozenset[int]) -> tuple[int, ...]:
    """Positions before each run of special tokens, ascending, without 0: the end of the system prompt, of
    each message, and, last, the point before the generation prompt."""
    positions = [
        position
        for position in range(1, len(tokens))
        if tokens[position] in special and tokens[position - 1] not in special
    ]
    if len(positions) > MOST_BOUNDARIES:
        positions = positions[: MOST_BOUNDARIES // 4] + positions[-3 * MOST_BOUNDARIES // 4 :]
    return tuple(positions)
