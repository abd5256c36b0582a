"""What our batch does with the insides of mlx-lm 0.32.2's `BatchGenerator` (`generate.py`).

Upstream prefills what is inserted in its own order and chunks, makes a model call when rows begin to decode,
and samples and stops rows by itself. We decide all of that (`batch.py`), and use the rest: the two batches,
and how rows join, move and leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch, StopSequences
from mlx_lm.models.cache import BatchRotatingKVCache

_NO_STOPS = StopSequences()


class OpenGenerator(BatchGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """A BatchGenerator into which rows are inserted without being prefilled."""

    def __init__(self, model: Any, max_rows: int) -> None:
        """Use the default stream, as for all else that we compute: with upstream's own stream beside it each
        join and leave would be an event between two, and an error on one would not be seen on the other."""
        stream = mx.default_stream(mx.default_device())
        super().__init__(model, completion_batch_size=max_rows, prefill_batch_size=max_rows, stream=stream)

    def inserted(
        self, last_tokens: Sequence[int], caches: Sequence[Any], rows: Sequence[Any]
    ) -> tuple[list[int], PromptProcessingBatch]:
        """Return new uids, and the rows as a batch that our own may be extended by. `last_tokens`: of their
        prompts, the only ones that upstream gets. `rows` take the place of samplers: upstream keeps them in
        order."""
        uids: list[int] = self.insert_segments(
            [[[token]] for token in last_tokens],
            max_tokens=[1] * len(rows),
            caches=list(caches),
            samplers=list(rows),
        )
        batch = self._make_batch(len(rows))
        self._currently_processing.clear()  # Upstream's bookkeeping of its own prefill.
        return uids, batch


def take_over() -> None:
    """Keep `BatchGenerator` from wiring memory: `../device.py` decides what stays resident. Each one would
    wire as much as the system recommends, and wire again, when it is collected as garbage, what was wired
    before it."""
    # By its full name: the package has a function of the same name.
    generate = import_module("mlx_lm.generate")
    setattr(generate, "maybe_set_recommended_wired_limit", lambda: None)  # noqa: B010 (mypy: no such name)


def as_generation(prompts: PromptProcessingBatch, last_tokens: Sequence[int]) -> GenerationBatch:
    """Return a batch that `GenerationBatch.extend` accepts, without the model call that its `__init__`
    makes."""
    batch = GenerationBatch.empty(prompts.model, None)
    batch.uids, batch.samplers, batch.prompt_cache = prompts.uids, prompts.samplers, prompts.prompt_cache
    batch._next_tokens = mx.array(list(last_tokens), dtype=mx.uint32)
    batch._next_logprobs = [None] * len(last_tokens)
    # The rest is upstream's own sampling and stopping, which is not used.
    batch.tokens = [[] for _ in last_tokens]
    batch.logits_processors = [[] for _ in last_tokens]
    batch.max_tokens = [0] * len(last_tokens)
    batch.stop_sequences = [_NO_STOPS] * len(last_tokens)
    batch._token_context = [None] * len(last_tokens)
    batch._num_tokens = [0] * len(last_tokens)
    batch._matchers = [None] * len(last_tokens)
    return batch


def order_ring(layer: Any) -> None:
    """Order a ring before a chunk's mask is made. mlx-lm makes the mask from the place in the ring where the
    last single token was written, and orders the ring after that: the mask then hides one valid token of a
    shorter row."""
    if isinstance(layer, BatchRotatingKVCache) and layer.rotated:
        layer._temporal_order()
