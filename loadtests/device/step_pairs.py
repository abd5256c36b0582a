"""The time of a decode step by rows and shared prefix: Penstock's engine against a bare BatchGenerator.

Each runs in a process of its own with the same model and BLAS, in turn at each size. The fastest of the steps
counts, because other work on the machine can only slow a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.asked_process import Answer, Question, asked_process

PRIVATE_TOKENS = 64
_STEPS = 16


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    prefix_tokens: int

    def copied_bytes(self, token_bytes: int) -> int:
        """Return the bytes of a batch that copies the prefix for each row; twice that while it is built."""
        return self.rows * (self.prefix_tokens + PRIVATE_TOKENS) * token_bytes


@dataclass(frozen=True, slots=True)
class Step:
    """The fastest step at one size, and bytes of keys and values then."""

    size: Size
    seconds: float
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Pair:
    """`bare` is None if it would have needed more memory than allowed."""

    ours: Step
    bare: Step | None


def measure(
    sizes: Sequence[Size],
    folder: Path,
    environment: Mapping[str, str],
    token_bytes: int,
    most_bytes: int,
) -> Iterator[Pair]:
    """Yield pairs as they are measured, with the folder's own type of weights."""
    module = "loadtests.device.step_process"
    with (
        asked_process(module, ("ours", str(folder)), environment) as ours,
        asked_process(module, ("bare", str(folder)), environment) as bare,
    ):
        for size in sizes:
            fits = 2 * size.copied_bytes(token_bytes) <= most_bytes
            yield Pair(_step(ours, size), _step(bare, size) if fits else None)


def _step(ask: Callable[[Question], Answer], size: Size) -> Step:
    job = {"rows": size.rows, "prefix": size.prefix_tokens, "private": PRIVATE_TOKENS, "steps": _STEPS}
    answer = ask(job)
    return Step(size, min(answer["seconds"]), answer["kv_bytes"])
