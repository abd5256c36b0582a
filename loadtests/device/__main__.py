"""The process that measures a device: `python -m loadtests.device RECORD MODEL_FOLDER full|quick PART ...`.

`parts.py` starts it with the BLAS of the engine, which must be loaded before MLX, and reads the record.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import trio

from loadtests.chaos.run import Plan, run
from loadtests.chaos.strikes import Strike
from loadtests.device import branches, large, memory, operations, parts, steps
from loadtests.device import zoo as kinds
from loadtests.device.finding import Figure, Finding, attempt
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.environment import keep_float32, set_defaults
from scheduler.models.embedded_model import EMBEDDED_FOLDER

_TEXTS = ("device_name", "architecture")
"""MLX's facts that are text and name no machine, as a card's uuid does."""
ZOO = (
    "qwen3", "gpt_oss", "mistral3+windows", "deepseek_v3", "qwen3_next", "rwkv7", "gemma3n", "minimax_m3_vl"
)  # fmt: skip
"""One of each kind of cache (`tests/scheduler/engine/mlx/zoo/kinds.py`) that takes less than minutes."""
ZOO_QUICK: tuple[str, ...] = ("qwen3",)
_ZOO_SECONDS = 60.0
_OPERATIONS_SECONDS = 45.0
"""Less than `SECONDS`, by what the longest compilation takes beyond it."""


def machine() -> dict[str, Figure]:
    """Return what the device is and which versions run; nothing that names a person or a machine."""
    found = {
        name: value
        for name, value in device().facts().items()
        if name in _TEXTS or isinstance(value, int | float)
    }
    traits = device().traits
    return {
        "device": device().name,
        "kind": traits.kind,
        "float32": device().float32,
        "system": f"{platform.system()} {platform.machine()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("penstock", "mlx", "mlx-lm")},
        **found,
    }


@dataclass(frozen=True, slots=True)
class Extent:
    """`folder`: the model for steps and memory. `quick`: with small sizes."""

    folder: Path
    quick: bool


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    expected: str
    findings: Callable[[Extent], Iterator[Finding]]


def _branches(extent: Extent) -> Iterator[Finding]:
    dtypes = ("float32", "bfloat16") if extent.quick else tuple(branches.DTYPES)
    subjects = [branches.Subject.of(EMBEDDED_FOLDER, dtype) for dtype in dtypes]
    return branches.findings(subjects, ["metal", "x86"] if extent.quick else list(branches.BRANCHES))


def _zoo(extent: Extent) -> Iterator[Finding]:
    names = ZOO_QUICK if extent.quick else (*ZOO, *(f"{name}@bfloat16" for name in ZOO))
    return kinds.findings(names, _ZOO_SECONDS)


def _server(extent: Extent) -> Iterator[Finding]:
    """A server whose engine ends twice under load: every answer is the undisturbed one's."""
    plan = Plan(
        8 if extent.quick else 48,
        deaths=2,
        poison=False,
        arguments=("--weights-dtype", "float32"),
        kinds=(Strike.KILL, Strike.MEMORY),
    )

    def judged() -> Finding:
        found = trio.run(run, plan, partial(print, flush=True))
        figures: dict[str, Figure] = {
            "answers": found.asked,
            "greedy": found.greedy,
            "engines_that_died": found.server["deaths"],
            "resumed": found.server["requests that resumed on another engine"],
            "longest_pause_seconds": found.longest_pause_seconds,
            "undisturbed_pause_seconds": found.usual_pause_seconds,
        }
        complaints = "; ".join(found.complaints())
        return Finding("two deaths under load", "wrong" if complaints else "right", figures, complaints)

    yield attempt("two deaths under load", judged)


def _memory(extent: Extent) -> Iterator[Finding]:
    chunks = (32, 64, 128) if extent.quick else (64, 128, 256, 512)
    context_tokens, most_rows = (900, 4) if extent.quick else (16_384, 16)
    return memory.findings(steps.loaded(extent.folder), context_tokens, chunks, most_rows)


PARTS: Mapping[str, Part] = {
    "operations": Part(
        "Operations",
        "Each operation is there, and its answer is the CPU's within rounding; the first time has what is"
        " compiled, the host's is building the graph and handing it over.",
        lambda extent: operations.findings(extent.quick, _OPERATIONS_SECONDS),
    ),
    "branches": Part(
        "Branches",
        "Every token of the embedded model is the best one, and every log-probability that of mlx-lm's model"
        " on the CPU, within the dtype's rounding; in float32 seeded answers are the same beside others as"
        " alone. This device's choices first, then those for others.",
        _branches,
    ),
    "zoo": Part(
        "Families",
        "The same tokens alone, joining, behind new and known prefixes, in a second turn, and with drafts.",
        _zoo,
    ),
    "server": Part(
        "Server", "`penstock serve` starts; answers whose engine dies are the undisturbed ones.", _server
    ),
    "large": Part(
        "A model of 8B's shape, bfloat16",
        "As the steps below; the device is busy for nine tenths of a step of 32 rows.",
        lambda extent: large.findings(extent.quick),
    ),
    "steps": Part(
        "Steps",
        "A step is as fast as a bare `BatchGenerator`'s; the host's part is below a step where steps wait for"
        " the device.",
        lambda extent: steps.findings(extent.folder, steps.QUICK if extent.quick else steps.FULL),
    ),
    "memory": Part(
        "Memory",
        "A chunk takes no more than the guard expects from the chunks before it; growth is the row's bytes"
        " and an eighth for room; steps copy no rows; a refusal is known as one.",
        _memory,
    ),
}


def contained(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield a part's findings; what it raises between them is one, too."""
    over = Finding(name, "measured")
    while (finding := attempt(name, lambda: next(findings, over))) is not over:
        yield finding


def main() -> None:
    record, folder, extent = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    set_defaults(os.environ)
    keep_float32(os.environ)
    parts.describe(record, machine())
    for name in sys.argv[4:]:
        part = PARTS[name]
        parts.begin(record, name, part.title, part.expected)
        print(f"{part.title}:", flush=True)
        # On a device that ends the process, the last line shows the cause.
        raised = False
        for finding in contained(name, part.findings(Extent(folder, extent == "quick"))):
            print(f"  {finding.name}: {finding.judgement} {finding.detail}", flush=True)
            parts.note(record, finding)
            raised = raised or finding.judgement == "raised"
        parts.end(record, name)
        if raised:
            return  # A device that has failed once may fail from then on: the next part gets a new process.
        gc.collect()
        device().clear_pool()


if __name__ == "__main__":
    main()
