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
"""The variable of a node's environment that names its device; without it the unit's number is the name."""
GIVE_UP_SECONDS = 60.0
"""An engine that cannot reach the server for this long gives up: the server is gone, and the next one starts
actors of its own."""
_PAUSE_FIRST_SECONDS = 1.0
_PAUSE_LIMIT_SECONDS = 15.0
_STABLE_SECONDS = 60.0
_DETACH = "import os, subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True); os._exit(0)"
"""A program that starts a command in another session and ends at once: what ends the actor or its children
then does not reach the command."""


class EngineActor:
    """An actor on one unit of a node. Ray makes it, and makes it again when its process has died."""

    def __init__(
        self, addresses: Sequence[str], port: int, token: str, blas: str, machine: str, unit: int | None
    ) -> None:
        """`unit`: this actor's number if the node has several, or None if it has one."""
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
                # Another attempt would end alike, and another server's actor may wait for the resource.
                self._leave()
            if time.monotonic() - started_at > _STABLE_SECONDS:
                backoff.lasted()
            time.sleep(backoff.seconds)
            backoff.waited()

    def _engine(self) -> str:
        """Start an engine, and return its last line of output when it has ended. It has ended when its pipe
        is closed. Its process id would not show that: an orphan cannot be waited for, and ids are reused."""
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
    """Return the worker's environment without the variables that Ray has set: they give one thread and no
    card to an actor that reserves no CPU and no GPU."""
    kept = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    kept.pop("OMP_NUM_THREADS", None)
    if not kept.get("CUDA_VISIBLE_DEVICES"):
        kept.pop("CUDA_VISIBLE_DEVICES", None)
    return kept
