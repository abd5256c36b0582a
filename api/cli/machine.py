"""This machine's device and memory, and what a model takes of it, as a child process that imports MLX reports
them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from api.cli.errors import OperatorError
from scheduler.engine.budget.limits import memory_limit
from scheduler.engine.device import DeviceKind
from scheduler.shared.own_path import with_own_path
from scheduler.shared.row_bytes import RowBytes

_MODULE = "scheduler.engine.mlx.model_facts"
_SECONDS = 80.0
"""MLX's import took 15 s from a cold disk; a model's shapes take 1 s, or a few for hundreds of layers."""
_TAIL_LINES = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """The device that engines would use."""

    device: str
    """MLX's name of the device; `cpu` for all processors together."""
    kind: DeviceKind
    wide_weights: bool
    """Whether it computes in float32, whatever type the weights are stored in."""
    machine_bytes: int
    """Physical memory, or the control group's limit."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """MLX's device_info()."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a model takes on this device."""

    weights_bytes: int = 0
    row: RowBytes = field(default_factory=lambda: RowBytes(0))
    q8_row: RowBytes | None = None
    """Bytes of a row with `--kv-cache-dtype q8`, or None if that takes no less."""
    error: str = ""
    """Why mlx-lm cannot build it; then the rest says nothing."""


class Answer(NamedTuple):
    machine: Machine
    model: ModelMemory | None
    """None if no model was asked for, or the child died of it."""


def ask(folder: Path | None = None) -> Answer:
    """Ask a child process about this machine and the model in `folder`, without reading weights. Raise
    OperatorError if MLX does not work here."""
    command = [sys.executable, "-m", _MODULE, *([] if folder is None else [str(folder)])]
    # Without this program's options, which may hold API keys.
    others = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment = {**with_own_path(others), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, env=environment
        )
        output, stderr = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        output, stderr = error.stdout or b"", f"no answer within {_SECONDS:g} s".encode()
    except OSError as error:
        raise OperatorError(f"no process can be started to ask MLX: {error}") from error
    try:
        return read_answer(output)
    except msgspec.MsgspecError as error:
        words = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        last = "\n".join(words[-_TAIL_LINES:])
        raise OperatorError(f"MLX does not work on this machine:\n{last}") from error


def read_answer(output: bytes) -> Answer:
    """Return the content of the child's one or two lines. Raise msgspec's error if they are malformed."""
    first, _, second = output.partition(b"\n")
    machine = msgspec.json.decode(first, type=Machine)
    return Answer(machine, msgspec.json.decode(second, type=ModelMemory) if second.strip() else None)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What one engine with this model would have, with `serve`'s default options and nothing else running."""

    limit_bytes: int
    """Bytes that the engine may use."""
    kv_bytes: int
    """Bytes for running sequences and cached prefixes."""

    def agents(self, row: RowBytes, tokens: int) -> int:
        """Return how many sequences of `tokens` tokens that share nothing run at a time. More run if they
        share a prefix, which the engine counts once."""
        return self.kv_bytes // max(1, row.held(tokens))


def memory_plan(found: Machine, weights_bytes: int) -> MemoryPlan:
    """Return the plan, by the engine's arithmetic. Raise MemoryTooSmall, which says by how much."""
    limit = memory_limit(0.0, found.info, found.machine_bytes, weights_bytes, None, 1.0)
    return MemoryPlan(limit.limit_bytes, limit.kv_budget_bytes(limit.first_peak_bytes))
