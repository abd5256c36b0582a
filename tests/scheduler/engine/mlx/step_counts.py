"""What the host does in a step, as counts: operations of a graph, and calls of Python functions."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten


def operations(arrays: Any) -> int:
    """Return how many operations must still run for these arrays, a tree of them."""
    graph = io.StringIO()
    leaves: list[tuple[str, Any]] = tree_flatten(arrays)  # type: ignore[assignment]
    mx.export_to_dot(graph, *[array for _, array in leaves if isinstance(array, mx.array)])
    return graph.getvalue().count("shape=rectangle")


@dataclass(slots=True)
class Calls:
    """Calls of Python functions: those of the model's, and what it calls, and all others."""

    model: int = 0
    others: int = 0


@contextmanager
def counted_calls(model: CodeType) -> Iterator[Calls]:
    """Count the calls of this thread. `model`: the function that is the model's."""
    found, depth = Calls(), 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        if event == "call":
            depth += frame.f_code is model
            if depth:
                found.model += 1
            elif frame.f_code.co_filename != __file__:
                found.others += 1
        elif event == "return":
            depth -= frame.f_code is model

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
