"""What our batch takes of mlx-lm 0.32.2's `BatchGenerator` (`generate.py`): its two batches, made by their
constructors, and how rows join, move and leave.

Upstream prefills what is inserted in its own order and chunks, makes a model call when rows begin to decode,
and samples and stops rows by itself. We decide all of that (`batch.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, PromptProcessingBatch, StopSequences
from mlx_lm.models.cache import BatchRotatingKVCache

_NO_STOPS = StopSequences()


class OpenGenerator(BatchGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """A BatchGenerator whose own queue and steps are not used."""

    def __init__(self, model: Any, max_rows: int) -> None:
        """Use the default stream, as for all else that we compute: with upstream's own stream beside it each
        join and leave would be an event between two, and an error on one would not be seen on the other."""
        stream = mx.default_stream(mx.default_device())
        super().__init__(model, completion_batch_size=max_rows, prefill_batch_size=max_rows, stream=stream)


def prompts_of(model: Any, rows: Sequence[Any], caches: Sequence[Any]) -> PromptProcessingBatch:
    """Return rows in prefill. Each is its own uid; what upstream samples and stops by is not used."""
    count = len(rows)
    return PromptProcessingBatch(
        model,
        list(rows),
        list(caches),
        samplers=[None] * count,
        logits_processors=[()] * count,
        stop_sequences=[_NO_STOPS] * count,
        max_tokens=[0] * count,
    )


def take_over() -> None:
    """Keep `BatchGenerator` from wiring memory: `../device.py` decides what stays resident. Each one would
    wire as much as the system recommends (mlx-lm #1252, closed without a change), and wire again, when it is
    collected as garbage, what was wired before it."""
    # By its full name: the package has a function of the same name.
    generate = import_module("mlx_lm.generate")
    setattr(generate, "maybe_set_recommended_wired_limit", lambda: None)  # noqa: B010 (mypy: no such name)


def order_ring(layer: Any) -> None:
    """Order a ring before a chunk's mask is made. mlx-lm makes the mask from the place in the ring where the
    last single token was written, and orders the ring after that: the mask then hides one valid token of a
    shorter row (not reported)."""
    if isinstance(layer, BatchRotatingKVCache) and layer.rotated:
        layer._temporal_order()
