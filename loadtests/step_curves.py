"""The time of a decode step by rows and shared prefix: Penstock's engine against a bare BatchGenerator.

`penstock bench steps`: each runs in a process of its own with the same model and BLAS, in turn at each size.
The fastest of the steps counts, because other work on the machine can only slow a step. Draws the curves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.canvas import COLOURS, Plot, canvas

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
def step_process(
    kind: str, folder: Path, environment: Mapping[str, str], weights: str
) -> Iterator[StepProcess]:
    """Start a step process of `kind` ours or bare, and end it after the block."""
    command = [sys.executable, "-m", "loadtests.step_process", kind, str(folder), weights]
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
    weights: str = "float32",
) -> Iterator[Pair]:
    """Yield pairs as they are measured. `weights`: "float32", or "stored" for the folder's own type."""
    with (
        step_process("ours", folder, environment, weights) as ours,
        step_process("bare", folder, environment, weights) as bare,
    ):
        for size in sizes:
            fits = 2 * size.copied_bytes(token_bytes) <= most_bytes
            yield Pair(ours.measure(size), bare.measure(size) if fits else None)


def described(pair: Pair) -> str:
    """Return one line."""
    size, ours = pair.ours.size, pair.ours
    text = f"{size.rows:3} rows, prefix {size.prefix_tokens:6}: {ours.seconds * 1000:6.1f} ms, "
    text += f"{ours.kv_bytes / 1e6:7.0f} MB"
    if pair.bare is None:
        return f"{text}; BatchGenerator not measured (memory)"
    ratio = pair.bare.seconds / ours.seconds
    bare = f"{pair.bare.seconds * 1000:6.1f} ms, {pair.bare.kv_bytes / 1e6:7.0f} MB"
    return f"{text}; BatchGenerator {bare}: {ratio:.2f} times as long"


def plot(pairs: Sequence[Pair]) -> Plot:
    """Draw the curves. Raise PlotsMissing if matplotlib is not installed."""
    with canvas("steps", 1, 3.6) as drawing:
        axes = drawing.axes[0]
        rows = sorted({pair.ours.size.rows for pair in pairs})
        for number, colour in zip(rows, COLOURS, strict=False):
            mine = [pair for pair in pairs if pair.ours.size.rows == number]
            for label, style, steps in (
                ("Penstock", "-o", [pair.ours for pair in mine]),
                ("BatchGenerator", "--x", [pair.bare for pair in mine if pair.bare is not None]),
            ):
                axes.plot(
                    [max(1, step.size.prefix_tokens) for step in steps],
                    [step.seconds * 1000 for step in steps],
                    style,
                    color=colour,
                    label=f"{label}, {number} rows",
                )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens of the prefix that all rows share")
        axes.set_ylabel("fastest decode step (ms)")
        drawing.legend()
        return Plot(
            "A decode step by shared prefix and rows",
            f"Each row has {PRIVATE_TOKENS} tokens of its own besides. Lower is better; where a dashed line"
            " ends, a copy of the prefix for each row would not have fitted into the memory allowed.",
            drawing.svg(),
        )
