"""What each of several engines on one machine gets of it: BLAS threads, a GPU. Pure, but for the last
functions, which ask the system."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder for each card, where the driver is loaded."""


def share_of(number: int, engines: int, cores: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables to set for engine `number` of `engines` where the operator has not.

    On a CPU each gets as many BLAS threads as its part of the cores. `gpus`: the cards that CUDA may use, one
    for each engine; Metal has one for all.
    """
    if engines == 1:
        return {}
    card = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
    threads = str(max(1, cores // engines))
    return {**card, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}


def sharers_of(engines: int, gpus: Sequence[str]) -> int:
    """Return how many engines use one device's memory."""
    return -(-engines // max(1, len(gpus)))


def cores_of_process() -> int:
    """Return how many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1


def gpus_of(environment: Mapping[str, str], folder: Path = _NVIDIA_GPUS) -> tuple[str, ...]:
    """Return the CUDA devices that this process may use; none on a machine without the driver."""
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(one.strip() for one in visible.split(",") if one.strip())
    try:
        return tuple(str(number) for number, _ in enumerate(sorted(folder.iterdir())))
    except OSError:
        return ()
