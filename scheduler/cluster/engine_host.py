"""The actor that holds a node's resource `mlx` while an engine uses it. Runs in a Ray worker; imports no Ray.

It starts one host process, and ends when that ends. Nothing hangs on the actor: if Ray kills it, the host
process and its engine go on, and only the resource looks free, which the lock on the device makes good.

A file of its own because a Ray worker loads it, and needs nothing of the agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from scheduler.cluster.order import HostOrder
from scheduler.cluster.started_host import start_host


class EngineHost:
    """Ray makes it with the encoded HostOrder."""

    def __init__(self, order: bytes) -> None:
        """Raise HostNotStarted."""
        self._host = start_host(HostOrder.decode(order), host_environment(os.environ))
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
