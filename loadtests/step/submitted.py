"""What is given to the device: where the graphs of a step go, and how large they are."""

from __future__ import annotations

import io
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from loadtests.step.parts import Parts, replace


def operations(arrays: Any) -> int:
    """Return how many operations must still run for these arrays, a tree of them."""
    graph = io.StringIO()
    leaves: list[tuple[str, Any]] = tree_flatten(arrays)  # type: ignore[assignment]
    mx.export_to_dot(graph, *[array for _, array in leaves if isinstance(array, mx.array)])
    return graph.getvalue().count("shape=rectangle")


class Submissions:
    """All evaluations of this process: a part of the step, and counted while `counting`."""

    def __init__(self, parts: Parts, waiting: str) -> None:
        """`waiting`: the part of `mx.eval`, which waits for the device."""
        self.counting = False
        self.operations = self.evaluations = 0
        for name, part in (("async_eval", "submit"), ("eval", waiting)):
            self._count(name)
            parts.measure(mx, name, part)

    def _count(self, name: str) -> None:
        whole = getattr(mx, name)

        def counted(*arrays: Any) -> Any:
            if self.counting:
                self.operations += operations(arrays)
                self.evaluations += 1
            return whole(*arrays)

        replace(mx, name, counted)

    def take(self) -> tuple[int, int]:
        """Return the operations and the evaluations since the last call."""
        taken = self.operations, self.evaluations
        self.operations = self.evaluations = 0
        return taken
