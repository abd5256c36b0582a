"""One model of each kind of cache in all scenes of the zoo, by the checkout's own program."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadtests.device.finding import Finding, attempt
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.environment import COMPILED

PROGRAM = "tests.scheduler.engine.mlx.zoo"
"""A wheel does not have it: run this in a checkout."""
_CORES = 2
"""The cores of the host that each process gets."""


def findings(names: Sequence[str], seconds: float) -> Iterator[Finding]:
    """Try each, as in `qwen3` (float32) and `qwen3@bfloat16`, in a process of its own for these seconds: on a
    device several side by side, for most of their time the host compiles."""
    try:
        found = importlib.util.find_spec(PROGRAM)
    except ModuleNotFoundError:
        found = None
    if found is None:
        yield Finding("zoo", "measured", detail="left out: there is no checkout in this folder")
        return
    side_by_side = 1 if device().traits.kind == "cpu" else max(1, (os.cpu_count() or 1) // _CORES)
    with tempfile.TemporaryDirectory() as compiled, ThreadPoolExecutor(side_by_side) as threads:

        def judged(name: str) -> Finding:
            # MLX writes what it compiles in place: two processes that share a folder may read half a kernel.
            own = {COMPILED: str(Path(compiled) / name)}
            return attempt(name, lambda: _judged(name, seconds, os.environ | own))

        yield from threads.map(judged, names)


def _judged(name: str, seconds: float, environment: Mapping[str, str]) -> Finding:
    # The program's package is not imported here: it changes mlx-lm when it is.
    command = [sys.executable, "-m", PROGRAM, "--only-judge", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=dict(environment))
    if done.returncode:
        return Finding(name, "raised", detail=f"ended with {done.returncode}: {done.stderr[-300:]}")
    verdict = json.loads(done.stdout.splitlines()[-1])
    wrong = "; ".join(f"{scene}: {what}" for scene, what in verdict["scenes"].items() if what != "right")
    figures = {
        "largest_difference": verdict["largest"],
        "fallbacks": ", ".join(verdict["fallbacks"]) or "none",
    }
    return Finding(name, "wrong" if wrong else "right", figures, wrong)
