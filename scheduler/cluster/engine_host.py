"""The actor that holds a node's resource `mlx` while an engine uses it. Runs in a Ray worker; imports no Ray.

It starts one host process, and ends when that ends. Nothing hangs on the actor: if Ray kills it, the host
process and its engine go on, and only the resource looks free, which the lock on the device makes good.

A file of its own because a Ray worker loads it, and needs nothing of the agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import msgspec

from scheduler.cluster.order import HostOrder
from scheduler.cluster.started_host import start_host
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.user_cache import user_cache_folder


class EngineHost:
    """Ray makes it with the encoded HostOrder."""

    def __init__(self, order: bytes) -> None:
        """Raise HostNotStarted."""
        environment = host_environment(os.environ)
        self._host = start_host(with_fast_blas(HostOrder.decode(order), environment), environment)
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def pid(self) -> int:
        """Of the host process."""
        return self._host.pid

    def _end_with_it(self) -> None:
        self._host.wait()
        # Not by an exception of an actor's method: nobody calls one.
        os._exit(0)


def host_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment without what Ray has put into it for itself: an actor without CPUs and
    GPUs gets one thread and no card."""
    kept = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    kept.pop("OMP_NUM_THREADS", None)
    if not kept.get("CUDA_VISIBLE_DEVICES"):
        kept.pop("CUDA_VISIBLE_DEVICES", None)
    return kept


def with_fast_blas(order: HostOrder, environment: Mapping[str, str]) -> HostOrder:
    """Return the order with what the engine needs for this machine's fast BLAS, where it computes on a plain
    Linux CPU. The host process itself multiplies nothing."""
    ours = prepare("auto", user_cache_folder(environment)).environment(environment)
    added = tuple((name, value) for name, value in ours.items() if environment.get(name) != value)
    return msgspec.structs.replace(order, environment=(*added, *order.environment))
