"""A prompt's leading blocks by their hashes: what two prompts must share to share a prefix.

Hashed once a request, where the prompt is prepared (in a worker thread); its choices and the queue's
`prefix_estimate.py` use the same hashes.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_TOKENS = 256
"""Shorter shared beginnings are not worth a request's going first."""


def block_hashes(prompt: Sequence[int], salt: str) -> tuple[int, ...]:
    """One a whole block, each of everything up to its end. About 1 ms for 100,000 tokens."""
    hashes = []
    chained = hash(salt)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chained = hash((chained, *prompt[start : start + BLOCK_TOKENS]))
        hashes.append(chained)
    return tuple(hashes)
