"""The process that measures a device: `python -m loadtests.device MODEL_FOLDER MODEL_NAME OUT full|quick`.

Started by `penstock bench device` with the BLAS of the engine, which must be loaded before MLX.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from loadtests.device import branches, kernels, memory, report, rows, served, steps
from loadtests.device.finding import DeviceReport, Figure, Finding, Section
from scheduler.engine.mlx.device import device
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import TINY, write_model

_TEXTS = ("device_name", "architecture")
"""MLX's facts that are text and name no machine, as a card's uuid does."""


def machine() -> dict[str, Figure]:
    """Return what the device is and which versions run; nothing that names a person or a machine."""
    facts = {
        name: value
        for name, value in device().facts().items()
        if name in _TEXTS or isinstance(value, int | float)
    }
    traits = device().traits
    return {
        "device": device().name,
        "kind": traits.kind,
        "system": f"{platform.system()} {platform.machine()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("penstock", "mlx", "mlx-lm")},
        **facts,
    }


def measured(folder: Path, name: str, quick: bool) -> Iterator[DeviceReport]:
    """Yield the report after each section: a device that ends the process leaves what was found before."""
    started = time.perf_counter()
    sections: list[Section] = []
    for section in chain(_correctness(quick), _performance(folder, quick)):
        sections.append(section)
        yield DeviceReport(machine(), name, quick, time.perf_counter() - started, tuple(sections))


def _correctness(quick: bool) -> Iterator[Section]:
    dtypes = ["float32", "bfloat16"] if quick else ["float32", "bfloat16", "float16"]
    others = ["metal", "x86"] if quick else list(branches.BRANCHES)
    yield _section("Operations", "Errors are within the tolerance beside them.", kernels.findings())
    with tempfile.TemporaryDirectory() as kept:
        tiny = Path(kept) / "tiny"
        write_model(TINY, tiny)
        small = [branches.Subject.of(tiny, "tiny random model", dtype) for dtype in dtypes]
        yield _section(
            "Branches, tiny model",
            "Every token is the best one, and every log-probability that of mlx-lm's model on the CPU, within"
            " the dtype's rounding; in float32 seeded answers are the same beside others as alone.",
            branches.findings(small, others),
        )
    embedded = [branches.Subject.of(EMBEDDED_FOLDER, "embedded model", dtype) for dtype in dtypes]
    yield _section(
        "Branches, embedded model",
        "As above, with a model that was trained.",
        branches.findings(embedded, [] if quick else others),
    )


def _performance(folder: Path, quick: bool) -> Iterator[Section]:
    backend = rows.loaded(folder)
    yield _section(
        "Steps",
        "`host_share` below 1 where steps wait for the device; `overlap_ratio` below 1; a group's cost in"
        " tokens of keys and values, by which rows share prefixes.",
        steps.findings(
            backend,
            rows=(1, 8) if quick else (1, 8, 32),
            turns=2 if quick else 8,
            group_tokens=(256,) if quick else (256, 1024, 4096),
            chunks=(256,) if quick else (512, 1024, 2048, 4096),
        ),
    )
    sizes = (32, 64, 128) if quick else (64, 128, 256, 512)
    yield _section(
        "Memory",
        "A chunk takes no more than the guard expects from the chunks before it (the first six teach it);"
        " growth is the row's bytes and an eighth for room; steps copy no rows.",
        memory.findings(backend, 900 if quick else 16_384, sizes, rows=4 if quick else 16),
    )
    yield _section(
        "Server",
        "`penstock serve` starts; streams whose engine is killed end as undisturbed, after a pause.",
        served.findings(),
    )


def _section(title: str, expected: str, findings: Iterable[Finding]) -> Section:
    """Print each finding as it is made: on a device that dies, the last line shows the cause."""
    print(f"{title}:", flush=True)
    made: list[Finding] = []
    for finding in findings:
        print(f"  {finding.name}: {finding.judgement} {finding.detail}", flush=True)
        made.append(finding)
    return Section(title, expected, tuple(made))


def main() -> int:
    folder, name, out, extent = sys.argv[1:]
    complaints: list[str] = []
    for found in measured(Path(folder), name, extent == "quick"):
        data, text = report.write(found, Path(out))
        complaints = list(found.complaints())
    for complaint in complaints:
        print(f"wrong: {complaint}")
    print(f"report:  {text}\nfigures: {data}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
