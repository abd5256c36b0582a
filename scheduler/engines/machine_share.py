"""What each of several engines on one machine gets of it: cores, BLAS threads, a GPU. Pure, but for the last
functions, which ask the system."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder for each card, where the driver is loaded."""


@dataclass(frozen=True, slots=True)
class MachineShare:
    """`environment`: variables to set where the operator has not; `cores`: those to run on, or None for
    all."""

    environment: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] | None = None


def share_of(number: int, engines: int, cores: Sequence[int], gpus: Sequence[str]) -> MachineShare:
    """Return what engine `number` of `engines` gets. An engine that was added later shares with an earlier
    one.

    On a CPU that is a part of the cores, and as many BLAS threads; engines are not pinned if there are more
    of them than cores. `gpus`: the cards that CUDA may use, one for each engine; Metal has one for all.
    """
    if engines == 1 and number == 0:
        return MachineShare()
    environment = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
    each = max(1, len(cores) // engines)
    environment |= {"OPENBLAS_NUM_THREADS": str(each), "OMP_NUM_THREADS": str(each)}
    if len(cores) < engines:
        return MachineShare(environment)
    start = number % engines * each
    return MachineShare(environment, frozenset(cores[start : start + each]))


def sharers_of(engines: int, gpus: Sequence[str]) -> int:
    """Return how many engines use one device's memory."""
    return -(-engines // max(1, len(gpus)))


def cores_of_process() -> set[int]:
    """Return the cores that this process may use."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    else:
        return set(range(os.cpu_count() or 1))


def gpus_of(environment: Mapping[str, str], folder: Path = _NVIDIA_GPUS) -> tuple[str, ...]:
    """Return the CUDA devices that this process may use; none on a machine without the driver."""
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(one.strip() for one in visible.split(",") if one.strip())
    try:
        return tuple(str(number) for number, _ in enumerate(sorted(folder.iterdir())))
    except OSError:
        return ()
