"""Evaluate a prefill chunk a few layers at a time, where all at once would keep the device for too long.

MLX builds the graph of a whole chunk before it evaluates any of it. Metal's watchdog ends a process whose
GPU work does not finish in time, and the window server cannot draw meanwhile. So the host waits for the
device between two slices, which costs a moment in which the device is idle. The tokens are the same: what is
evaluated early is what would have been evaluated.

Models have `layers`, which they call one after the other, whatever they are (attention, states, experts).
Their classes' `__call__` is replaced for the one model call, and only where it is to be sliced. Of mlx-lm
0.32.2's 131 modules this slices 130, with logits equal to the bit; iquestloopcoder, which reaches into its
layers, is evaluated at once. We have run it on the CPU only, with a device forced to slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx


def layers_at_once(layers: int, predicted_seconds: float | None, most_seconds: float | None) -> int | None:
    """Return how many layers to evaluate at a time, so that they take no longer than `most_seconds` as far as
    can be predicted, or None for all. An unknown time counts as a long one: only the first steps have one."""
    if most_seconds is None or (predicted_seconds is not None and predicted_seconds <= most_seconds):
        return None
    if predicted_seconds is None:
        return 1
    return max(1, int(layers * most_seconds / predicted_seconds))


@contextmanager
def slices(model: Any, predicted_seconds: float | None, most_seconds: float | None) -> Iterator[None]:
    """Within this block, a call of the model evaluates its layers in slices, if it has to. One thread uses
    the model."""
    layers = [layer for layer in getattr(model, "layers", ()) if layer is not None]
    at_once = layers_at_once(len(layers), predicted_seconds, most_seconds)
    if at_once is None or at_once >= len(layers):
        yield
        return
    passed = 0

    def evaluated(call: Callable[..., Any]) -> Callable[..., Any]:
        def layer(self: Any, *args: Any, **fields: Any) -> Any:
            nonlocal passed
            hidden = call(self, *args, **fields)
            passed += 1
            if passed % at_once == 0:
                mx.eval(hidden)
            return hidden

        return layer

    kinds = {type(layer) for layer in layers}
    own = {kind: vars(kind).get("__call__") for kind in kinds}
    for kind, call in [(kind, kind.__call__) for kind in kinds]:
        setattr(kind, "__call__", evaluated(call))  # noqa: B010 (mypy: of a class that it does not know)
    try:
        yield
    finally:
        for kind, call in own.items():
            if call is None:
                del kind.__call__
            else:
                setattr(kind, "__call__", call)  # noqa: B010
