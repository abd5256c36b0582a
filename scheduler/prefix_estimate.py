"""How much of a prompt an engine's prefix cache is likely to have: an estimate in the server."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from scheduler.shared.token_ids import TokenIds

BLOCK_TOKENS = 256
"""Tokens of a block: a shorter shared prefix is no reason to reorder requests."""
MOST_BLOCKS = 65_536
"""Bound on the hashes: those of 16.8 million tokens, in about 8 MB."""


def block_hashes(prompt: TokenIds, salt: str) -> tuple[int, ...]:
    """Return one hash for each whole block, of all tokens up to its end. About 0.2 ms for 100,000 tokens."""
    hashes = []
    chained = hash(salt)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chained = hash((chained, prompt[start : start + BLOCK_TOKENS].tobytes()))
        hashes.append(chained)
    return tuple(hashes)


class PrefixEstimate:
    """The hashes of the blocks of recently computed prompts, the least recently used dropped first (as
    llm-d's router does for engines that do not report their cache).

    The queue has one for all engines together: it orders requests within one session only, and
    `charge_actual` corrects the charge made with it. Each engine has its own, for placement; the engine
    reports how much its cache holds, and `bound` drops what cannot be in it.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all of its blocks."""
        return len(self._blocks) * BLOCK_TOKENS

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Return the estimated prefix hit of a prompt with these blocks. At least one token is left to
        compute."""
        known = 0
        for chained in hashes:
            if chained not in self._blocks:
                break
            known += 1
        return min(known * BLOCK_TOKENS, prompt_tokens - 1)

    def computed(self, hashes: Sequence[int]) -> None:
        """Add the blocks of a prompt that the engine has computed, or is about to compute."""
        # The beginning last: other prompts share it, so it must be dropped last.
        for chained in reversed(hashes):
            self._blocks[chained] = None
            self._blocks.move_to_end(chained)
        while len(self._blocks) > MOST_BLOCKS:
            self._blocks.popitem(last=False)

    def forget(self, hashes: Sequence[int], computed_tokens: int) -> None:
        """Drop the blocks of a prompt beyond `computed_tokens`: the engine did not compute them."""
        for chained in hashes[computed_tokens // BLOCK_TOKENS :]:
            self._blocks.pop(chained, None)

    def bound(self, tokens: int) -> None:
        """Drop the least recently used blocks until `tokens` at most are left: the engine's cache holds no
        more."""
        while self.tokens > tokens:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Drop all blocks: the engine has lost its cache."""
        self._blocks.clear()
