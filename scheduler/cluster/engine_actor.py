"""The actor that holds one unit of a node's resource `mlx`, and keeps the command alive that joins the
server.

Nothing hangs on the actor: if Ray kills it, its engine continues; the next actor's command waits for the lock
on the device. It runs in a worker of Ray, which loads this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from scheduler.engine.joining import GAVE_UP, REFUSED, TOKEN_VARIABLE
from scheduler.processes.backoff import Backoff
from scheduler.shared.own_path import with_own_path

DEVICE_VARIABLE = "PENSTOCK_DEVICE"
"""What a node's own environment calls its device; by default its unit's number."""
GIVE_UP_SECONDS = 60.0
"""A server that cannot be reached for this long is gone. The next one has another token."""
_PAUSE_FIRST_SECONDS = 1.0
_PAUSE_LIMIT_SECONDS = 15.0
_STABLE_SECONDS = 60.0
_DETACH = "import os, subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True); os._exit(0)"
"""Starts a command whose parent has ended at once: what ends the actor, or its children, does not reach
it."""


class EngineActor:
    """Made by Ray, which makes it again where its process has died."""

    def __init__(
        self, addresses: Sequence[str], port: int, token: str, blas: str, machine: str, unit: int | None
    ) -> None:
        """`unit`: the number among several actors on this node, or None if there is one."""
        environment = engine_environment(os.environ)
        device = environment.pop(DEVICE_VARIABLE, str(unit or 0))
        name = machine if not unit else f"{machine}:{unit}"
        if unit is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(unit)
        self._environment = with_own_path({**environment, TOKEN_VARIABLE: token})
        self._command = [sys.executable, "-m", "scheduler.engine"]
        self._command += ["--join", f"{','.join(addresses)}:{port}", "--device", device, "--name", name]
        self._command += ["--blas", blas, "--give-up-seconds", f"{GIVE_UP_SECONDS:g}"]
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        backoff = Backoff(_PAUSE_FIRST_SECONDS, _PAUSE_LIMIT_SECONDS)
        while True:
            started_at = time.monotonic()
            last_words = self._engine()
            if last_words.startswith((GAVE_UP, REFUSED)):
                # There is nothing to come back to, and the resource is wanted.
                self._leave()
            if time.monotonic() - started_at > _STABLE_SECONDS:
                backoff.lasted()
            time.sleep(backoff.seconds)
            backoff.waited()

    def _engine(self) -> str:
        """Start an engine, and return its last words when it has ended. It holds the other end of the pipe
        for as long as it lives. It asks for no process id: an orphan cannot be waited for, and ids are
        reused."""
        starter = subprocess.Popen(
            [sys.executable, "-c", _DETACH, *self._command],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert starter.stdout is not None
        with starter.stdout as lines:
            last = ""
            for line in lines:
                print(line, end="", flush=True)
                last = line
        starter.wait()
        return last

    def _leave(self) -> None:
        import ray

        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment without what Ray has put into it for itself: an actor without CPUs
    and GPUs gets one thread and no card."""
    kept = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    kept.pop("OMP_NUM_THREADS", None)
    if not kept.get("CUDA_VISIBLE_DEVICES"):
        kept.pop("CUDA_VISIBLE_DEVICES", None)
    return kept
