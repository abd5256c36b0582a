"""Where the prefill of a model with states pauses, so that the state there can be kept (SGLang's term for
Mamba states is checkpoint, too)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CHECKPOINT_EVERY_TOKENS = 2048
"""In a long stretch without a boundary: what a branch inside it computes again at most."""
SCAFFOLD_TOKENS = 16
"""What all prompts of one chat template begin with; so few tokens are not worth a pause or a wait."""
LEAST_GAP_TOKENS = 256
"""Between two checkpoints. Each ends a chunk early, and a small chunk costs almost what a full one does."""


def checkpoints_of(
    boundaries: Sequence[int], shared: Iterable[int], start: int, length: int
) -> tuple[int, ...]:
    """Positions in (start, length), ascending.

    The first boundary (where the system prompt ends), the last (where the next turn goes on) and what
    other prompts are known to share are always among them; the boundaries between only where far enough
    from one another. The position before the last token needs none of its own.
    """
    inside = sorted({position for position in boundaries if start < position < length})
    sure = {*inside[:1], *inside[-1:], *_clusters(position for position in shared if position > start)}
    chosen: list[int] = []
    previous = start
    for position in sorted({*inside, *sure}):
        if position not in sure and position - previous < LEAST_GAP_TOKENS:
            continue
        chosen += range(previous + CHECKPOINT_EVERY_TOKENS, position, CHECKPOINT_EVERY_TOKENS)
        chosen.append(position)
        previous = position
    return (*chosen, *range(previous + CHECKPOINT_EVERY_TOKENS, length, CHECKPOINT_EVERY_TOKENS))


def _clusters(positions: Iterable[int]) -> set[int]:
    """The first of each few that lie together: behind one prefix, prompts part within some tokens."""
    firsts: list[int] = []
    for position in sorted(positions):
        if not firsts or position - firsts[-1] >= SCAFFOLD_TOKENS:
            firsts.append(position)
    return set(firsts)
