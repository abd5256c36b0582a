"""The time of a decode step by rows and shared prefix: Penstock's engine against a bare BatchGenerator.

Each runs in a process of its own with the same model and BLAS, in turn at each size. The fastest of the steps
counts, because other work on the machine can only slow a step.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


class StepProcess:
    """One engine, which measures one size at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, size: Size) -> Step:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"rows": size.rows, "prefix": size.prefix_tokens, "private": PRIVATE_TOKENS, "steps": _STEPS}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Step(size, min(answer["seconds"]), answer["kv_bytes"])


@contextmanager
def step_process(kind: str, folder: Path, environment: Mapping[str, str]) -> Iterator[StepProcess]:
    """Start a step process of `kind` ours or bare, and end it after the block."""
    command = [sys.executable, "-m", "loadtests.device.step_process", kind, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        json.loads(process.stdout.readline())
        yield StepProcess(process)
        process.stdin.close()


def measure(
    sizes: Sequence[Size],
    folder: Path,
    environment: Mapping[str, str],
    token_bytes: int,
    most_bytes: int,
) -> Iterator[Pair]:
    """Yield pairs as they are measured, with the folder's own type of weights."""
    with (
        step_process("ours", folder, environment) as ours,
        step_process("bare", folder, environment) as bare,
    ):
        for size in sizes:
            fits = 2 * size.copied_bytes(token_bytes) <= most_bytes
            yield Pair(ours.measure(size), bare.measure(size) if fits else None)
