"""The process that measures a device: `python -m loadtests.device RECORD MODEL_FOLDER full|quick PART ...`.

`parts.py` starts it with the BLAS of the engine, which must be loaded before MLX, and reads the record.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from loadtests.device import answers, branches, facts, kernels, large, memory, parts, pressure, rows, served
from loadtests.device import steps as decoding
from loadtests.device import zoo as kinds
from loadtests.device.finding import Figure, Finding, attempt
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.environment import keep_float32, set_defaults
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import TINY, user_cache_folder, write_model

_TEXTS = ("device_name", "architecture")
"""MLX's facts that are text and name no machine, as a card's uuid does."""
ZOO = ("qwen3", "gpt_oss", "mistral3+windows", "deepseek_v3", "qwen3_next", "rwkv7", "gemma3n", "llama4")
"""One of each kind of cache (`tests/scheduler/engine/mlx/zoo/kinds.py`) that takes less than minutes."""
ZOO_QUICK: tuple[str, ...] = ("qwen3",)
_ZOO_SECONDS = 60.0
_FACTS_SECONDS = 45.0
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


def _embedded(extent: Extent) -> Iterator[Finding]:
    dtypes = ("float32", "bfloat16") if extent.quick else ("float32", "bfloat16", "float16")
    subjects = [branches.Subject.of(EMBEDDED_FOLDER, "embedded model", dtype) for dtype in dtypes]
    return branches.findings(subjects, [])


def _branches(extent: Extent) -> Iterator[Finding]:
    dtypes = ("float32", "bfloat16") if extent.quick else ("float32", "bfloat16", "float16")
    with tempfile.TemporaryDirectory() as kept:
        tiny = Path(kept) / "tiny"
        write_model(TINY, tiny)
        small = [branches.Subject.of(tiny, "tiny random model", dtype) for dtype in dtypes]
        yield from branches.findings(small, ["metal", "x86"] if extent.quick else list(branches.BRANCHES))


def _zoo(extent: Extent) -> Iterator[Finding]:
    names = ZOO_QUICK if extent.quick else (*ZOO, *(f"{name}@bfloat16" for name in ZOO))
    return kinds.findings(names, _ZOO_SECONDS)


def _large(bits: int | None) -> Callable[[Extent], Iterator[Finding]]:
    def findings(extent: Extent) -> Iterator[Finding]:
        blas = prepare(user_cache_folder(os.environ))
        quick = large.QUICK if bits is None else large.QUICK_PACKED
        return large.findings(quick if extent.quick else large.FULL, bits, os.environ, blas)

    return findings


def _steps(extent: Extent) -> Iterator[Finding]:
    quick = extent.quick
    return decoding.findings(
        rows.loaded(extent.folder),
        rows=(1, 8) if quick else (1, 8, 32),
        turns=2 if quick else 8,
        group_tokens=(256,) if quick else (256, 1024, 4096),
        chunks=(256,) if quick else (512, 1024, 2048, 4096),
    )


def _memory(extent: Extent) -> Iterator[Finding]:
    sizes = (32, 64, 128) if extent.quick else (64, 128, 256, 512)
    context_tokens, most_rows = (900, 4) if extent.quick else (16_384, 16)
    return memory.findings(rows.loaded(extent.folder), context_tokens, sizes, most_rows)


def _pressure(extent: Extent) -> Iterator[Finding]:
    prompts, most_tokens = (30, 60) if extent.quick else (500, 2000)
    subject = branches.Subject.of(EMBEDDED_FOLDER, "embedded model", "float32")
    return pressure.findings(rows.loaded(extent.folder), subject, prompts, most_tokens)


def _packed(extent: Extent) -> Iterator[Finding]:
    count, tokens, turns = (2, 128, 1) if extent.quick else (16, 2048, 4)
    return decoding.packed_findings(extent.folder, count, tokens, turns)


PARTS: Mapping[str, Part] = {
    "facts": Part(
        "Facts",
        "Each operation is there, and its answer is the CPU's within rounding; the first time"
        " has what is compiled.",
        lambda extent: facts.findings(extent.quick, _FACTS_SECONDS),
    ),
    "operations": Part(
        "Operations", "Errors are within the tolerance beside them.", lambda extent: kernels.findings()
    ),
    "embedded": Part(
        "Branches, embedded model",
        "Every token is the best one, and every log-probability that of mlx-lm's model on the CPU, within the"
        " dtype's rounding; in float32 seeded answers are the same beside others as alone.",
        _embedded,
    ),
    "answers": Part(
        "Answers",
        "The same tokens as on the CPU, however they are drawn.",
        lambda extent: answers.findings(20, 12 if extent.quick else 48),
    ),
    "zoo": Part(
        "Kinds of caches",
        "The same tokens alone, joining, behind new and known prefixes, in a second turn, and with drafts.",
        _zoo,
    ),
    "branches": Part(
        "Branches, tiny model", "As above, with each device's branches and random weights.", _branches
    ),
    "server": Part(
        "Server",
        "`penstock serve` starts; streams whose engine ends end as undisturbed, after a pause.",
        lambda extent: served.findings(4 if extent.quick else 32),
    ),
    "large": Part(
        "A model of 8B's shape, bfloat16",
        "Tokens/s at least a bare `BatchGenerator`'s, and twice mlx_lm.server's with 32 clients; the device"
        " is busy for nine tenths of a step of 32 rows.",
        _large(None),
    ),
    "large-4bit": Part("A model of 8B's shape, 4 bits", "As above.", _large(4)),
    "steps": Part(
        "Steps",
        "`host_share` below 1 where steps wait for the device; `overlap_ratio` below 1; `deferred_ratio` at"
        " least 1, or submission waits here as on a CPU; a group's cost in tokens of keys and values, by"
        " which rows share prefixes.",
        _steps,
    ),
    "memory": Part(
        "Memory",
        "A chunk takes no more than the guard expects from the chunks before it (the first six teach it);"
        " growth is the row's bytes and an eighth for room; steps copy no rows.",
        _memory,
    ),
    "pressure": Part(
        "Memory that is short",
        "Nothing grows with prompts of new lengths; rows are preempted, and have the tokens that they have"
        " with room; a refusal of the device is known as one.",
        _pressure,
    ),
    "packed": Part("Packed keys and values", "About half the bytes; the time is what is asked for.", _packed),
}


def contained(
    name: str, findings: Callable[[Extent], Iterator[Finding]], extent: Extent
) -> Iterator[Finding]:
    """Yield the part's findings; what it raises between them is one, too."""
    found = findings(extent)
    while True:
        made: list[Finding] = []

        def following(made: list[Finding] = made) -> Finding:
            made.extend(islice(found, 1))
            return made[0] if made else Finding(name, "measured")

        finding = attempt(name, following)
        if not made and finding.judgement != "raised":
            return
        yield finding
        if not made:
            return


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
        for finding in contained(name, part.findings, Extent(folder, extent == "quick")):
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
