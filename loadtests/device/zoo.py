"""One model of each kind of cache in all scenes of the zoo, by the checkout's own program."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from loadtests.device.finding import Finding, attempt

PROGRAM = "tests.scheduler.engine.mlx.zoo"
"""A wheel does not have it: run this in a checkout."""


def findings(names: Sequence[str], seconds: float) -> Iterator[Finding]:
    """Try each, as in `qwen3` (float32) and `qwen3@bfloat16`, in a process of its own for these seconds."""
    try:
        found = importlib.util.find_spec(PROGRAM)
    except ModuleNotFoundError:
        found = None
    if found is None:
        yield Finding("zoo", "measured", detail="left out: there is no checkout in this folder")
        return
    for name in names:
        yield attempt(name, lambda: _judged(name, seconds))  # noqa: B023  # Called at once.


def _judged(name: str, seconds: float) -> Finding:
    # The program's package is not imported here: it changes mlx-lm when it is.
    command = [sys.executable, "-m", PROGRAM, "--only-judge", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        return Finding(name, "raised", detail=f"ended with {done.returncode}: {done.stderr[-300:]}")
    verdict = json.loads(done.stdout.splitlines()[-1])
    wrong = "; ".join(f"{scene}: {what}" for scene, what in verdict["scenes"].items() if what != "right")
    figures = {
        "largest_difference": verdict["largest"],
        "fallbacks": ", ".join(verdict["fallbacks"]) or "none",
    }
    return Finding(name, "wrong" if wrong else "right", figures, wrong)
