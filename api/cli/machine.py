"""This machine's device and memory, and what models take of it, as a child process that imports MLX reports
them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api.cli.errors import OperatorError
from scheduler.engine.device import DeviceKind
from scheduler.shared.own_path import with_own_path
from scheduler.shared.row_bytes import RowBytes, Window

_MODULE = "scheduler.engine.mlx.model_facts"
_START_SECONDS, _MODEL_SECONDS = 60.0, 20.0
"""MLX's import took 15 s from a cold disk; a model's shapes take 1 s, or a few for hundreds of layers."""
_TAIL_LINES = 3
_REASON_CHARACTERS = 200
"""Bound on a reason: mlx-lm names every tensor that is missing."""


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

    weights_bytes: int
    row: RowBytes
    q8_row: RowBytes | None = None
    """Bytes of a row with `--kv-cache-dtype q8`, or None if that takes no less."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the child process reported, by folder: `models`, and in `reasons` why mlx-lm cannot build one. A
    folder that got no answer is in neither."""

    machine: Machine
    models: Mapping[Path, ModelMemory] = field(default_factory=dict)
    reasons: Mapping[Path, str] = field(default_factory=dict)


def ask(folders: Sequence[Path] = ()) -> Answers:
    """Ask a child process about this machine and the models in `folders`, without reading weights. Raise
    OperatorError if MLX does not work here."""
    seconds = _START_SECONDS + _MODEL_SECONDS * len(folders)
    command = [sys.executable, "-m", _MODULE, *map(str, folders)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            env=child_environment(os.environ),
        )
        output, stderr = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        output, stderr = error.stdout or b"", f"no answer within {seconds:g} s".encode()
    except OSError as error:
        raise OperatorError(f"no process can be started to ask MLX: {error}") from error
    lines = output.decode("utf-8", "replace").splitlines()
    try:
        return read_answers(lines)
    except (ValueError, TypeError, KeyError) as error:
        raise OperatorError(f"MLX does not work on this machine:\n{_last(stderr)}") from error


def read_answers(lines: Sequence[str]) -> Answers:
    """Return the content of the child's lines. Raise ValueError, TypeError or KeyError if they are
    malformed."""
    first, *others = [json.loads(line) for line in lines]
    machine = Machine(
        str(first["device"]),
        first["kind"],
        bool(first["wide_weights"]),
        int(first["machine_bytes"]),
        dict(first["info"]),
    )
    models, reasons = dict[Path, ModelMemory](), dict[Path, str]()
    for answer in others:
        folder = Path(answer["folder"])
        if "error" in answer:
            reasons[folder] = " ".join(str(answer["error"]).split())[:_REASON_CHARACTERS]
        else:
            q8_row = None if answer.get("q8_row") is None else _row(answer["q8_row"])
            models[folder] = ModelMemory(int(answer["weights_bytes"]), _row(answer["row"]), q8_row)
    return Answers(machine, models, reasons)


def _row(found: Mapping[str, Any]) -> RowBytes:
    windows = tuple(Window(int(one["tokens"]), int(one["token_bytes"])) for one in found["windows"])
    return RowBytes(int(found["token_bytes"]), int(found["state_bytes"]), windows)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Python child, without this program's options, which may hold API keys."""
    child = {name: value for name, value in environment.items() if not name.startswith("PENSTOCK_")}
    return {**with_own_path(child), "HF_HUB_OFFLINE": "1"}


def _last(stderr: bytes) -> str:
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return "\n".join(lines[-_TAIL_LINES:])
