"""longcat_flash_ngram: the last tokens of each row, from which the embeddings of n-grams are made.

Two faults of mlx-lm 0.32.2 (`longcat_flash_ngram.py`): after a prompt shorter than an n-gram the state of
`NgramEmbedding` is narrower than that of other rows, and joining them raises; and the padding of a chunk's
shorter rows gets into the state. A token that is not there counts as token 0, so a state of zeros says the
same as none.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import longcat_flash_ngram


class RowNgrams(longcat_flash_ngram.NgramEmbedding):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, input_ids: mx.array, cache: Any = None) -> mx.array:
        """input_ids: (rows, tokens), the first `cache.lengths` (rows) of which are no padding, or all without
        them."""
        answer: mx.array
        if cache is None:
            answer = super().__call__(input_ids)
            return answer
        if cache[0] is None:
            cache[0] = mx.zeros((input_ids.shape[0], self.n - 1), mx.int64)
        before: mx.array = cache[0]
        answer = super().__call__(input_ids, cache)
        if cache.lengths is not None:
            context = mx.concatenate([before, input_ids.astype(mx.int64)], axis=1)
            ends = cache.lengths[:, None] + mx.arange(self.n - 1)
            cache[0] = mx.take_along_axis(context, ends, axis=1)
        return answer
