"""What a step gives to the device: how many operations, in how many evaluations."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from loadtests.step.steps import Steps, around


def operations(arrays: Any) -> int:
    """Return how many operations must still run for these arrays, a tree of them."""
    graph = io.StringIO()
    leaves: list[tuple[str, Any]] = tree_flatten(arrays)  # type: ignore[assignment]
    mx.export_to_dot(graph, *[array for _, array in leaves if isinstance(array, mx.array)])
    return graph.getvalue().count("shape=rectangle")


def count_graphs(steps: Steps) -> None:
    """Let all evaluations of this process be parts of these steps, and count them. `mx.eval` waits for the
    device, so it is reading."""
    graphs = steps.graphs = Counter()

    def count(*arrays: Any) -> None:
        if steps.counts_graphs:
            graphs.update({"operations": operations(arrays), "evaluations": 1})

    for name, part in (("async_eval", "submit"), ("eval", "read")):
        around(mx, name, before=count)
        steps.parts.measure(mx, name, part)
