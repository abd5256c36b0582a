"""How much of a prompt is likely to be in the engine's prefix cache: an estimate, on this side of the link.

The parent does not know the radix tree. It remembers by their hashes the blocks of recently computed prompts
(as llm-d's router does for engines that do not tell): a new prompt's leading blocks that are among them were
computed a while ago, in whichever session. Evictions are not seen here. Nothing depends on its being right:
it orders requests within one session, and the charge made with it is corrected when the engine has said what
it computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from scheduler.prompt.prefix_blocks import BLOCK_TOKENS

MOST_BLOCKS = 65_536
"""16.8 million tokens' worth, in about 8 MB."""


class PrefixEstimate:
    """The blocks computed most recently, the least recently used forgotten first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Of a prompt with these blocks. At least one token is always left to compute."""
        known = 0
        for chained in hashes:
            if chained not in self._blocks:
                break
            known += 1
        return min(known * BLOCK_TOKENS, prompt_tokens - 1)

    def computed(self, hashes: Sequence[int]) -> None:
        """A prompt with these blocks has been through the engine."""
        # The beginning last: it is what other prompts share, so it must be the last to be forgotten.
        for chained in reversed(hashes):
            self._blocks[chained] = None
            self._blocks.move_to_end(chained)
        while len(self._blocks) > MOST_BLOCKS:
            self._blocks.popitem(last=False)
