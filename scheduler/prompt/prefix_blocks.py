"""Hashes of a prompt's leading blocks: two prompts with equal ones share a prefix.

Computed once per request, in the worker thread that prepares it. The `PrefixEstimate`s of the queue and of
each engine use them.
"""

from __future__ import annotations

from scheduler.shared.token_ids import TokenIds

BLOCK_TOKENS = 256
"""Tokens of a block: a shorter shared prefix is no reason to reorder requests."""


def block_hashes(prompt: TokenIds, salt: str) -> tuple[int, ...]:
    """Return one hash for each whole block, of all tokens up to its end. About 0.2 ms for 100,000 tokens."""
    hashes = []
    chained = hash(salt)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chained = hash((chained, prompt[start : start + BLOCK_TOKENS].tobytes()))
        hashes.append(chained)
    return tuple(hashes)
