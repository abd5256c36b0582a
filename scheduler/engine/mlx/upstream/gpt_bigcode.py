"""gpt_bigcode: learned positions of each row.

The fault in mlx-lm 0.32.2 (`gpt_bigcode.py`): positions are `np.arange` from the cache's `offset`, which in a
batch is an array with a number for each row: it raises.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import gpt_bigcode
from mlx_lm.models.base import create_attention_mask


class RowPositions(gpt_bigcode.GPTBigCodeModel):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        """inputs: (rows, tokens)."""
        answer: mx.array
        if cache is None or isinstance(cache[0].offset, int):
            answer = super().__call__(inputs, cache)
            return answer
        positions = cache[0].offset[:, None] + mx.arange(inputs.shape[1])
        # Padding may go beyond the last position that there is.
        hidden = self.wte(inputs) + self.wpe(mx.minimum(positions, self.wpe.weight.shape[0] - 1))
        mask = create_attention_mask(hidden, cache[0])
        for layer, layer_cache in zip(self.h, cache, strict=True):
            hidden = layer(hidden, mask, cache=layer_cache)
        answer = self.ln_f(hidden)
        return answer
