"""Engines on the nodes of a Ray cluster: `penstock engine --ray ADDRESS --join HOST:PORT`.

On each unit of Ray's resource `mlx` this keeps a detached actor, which keeps the command alive that joins the
server. An engine that runs needs none of them: the next actor's command waits for the lock on the device.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from scheduler.engine.join.joining import GAVE_UP, REFUSED, TOKEN_VARIABLE
from scheduler.errors import StartupError
from scheduler.shared.local_network import connect_failure
from scheduler.shared.own_path import with_own_path

RESOURCE = "mlx"
_PAUSE_SECONDS = 1.0
_ANSWER_SECONDS = 45.0  # Calls to Ray cannot be interrupted: then this process ends, with their stacks.
# In a session of its own: what ends the actor does not reach the command.
_DETACH = "import os, subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True); os._exit(0)"
# Asks the head, and exits with 77 if it answers.
_PROBE = "import sys; from ray._raylet import GcsClient;"
_PROBE += "GcsClient(address=sys.argv[1]).get_all_node_info(timeout=3); sys.exit(77)"
_NO_TOKENS = (
    "Ray must check tokens, or anybody who reaches its port runs code on every machine: on one machine run"
    " `ray get-auth-token --generate`, copy ~/.ray/auth_token to all, and set RAY_AUTH_MODE=token for `ray"
    " start` on each and for this command"
)


def keep_engines(ray_address: str, server: str, token: str) -> NoReturn:
    """Start an actor on each unit that has none, also of nodes that join later. Raise StartupError if Ray
    cannot be joined or is gone; started again, this finds the actors that there are."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise StartupError(_NO_TOKENS)
    # Without these it sends statistics to its makers, and refuses Macs.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    try:
        import ray.util
    except ImportError as error:
        raise StartupError(f"--ray needs pip install 'penstock[cluster]' ({error})") from error
    check_reachable(ray_address)
    there: set[str] = set()
    faulthandler.dump_traceback_later(_ANSWER_SECONDS, exit=True)
    try:
        # An address is always given: Ray never starts a cluster of its own here.
        ray.init(ray_address, namespace="penstock", log_to_driver=False, configure_logging=False)
        if _answers_without_token(ray.get_runtime_context().gcs_address):
            raise StartupError(f"Ray at {ray_address} answers without a token: {_NO_TOKENS}")
        while True:
            faulthandler.dump_traceback_later(_ANSWER_SECONDS, exit=True)
            nodes = [one for one in ray.nodes() if one["Alive"] and one["Resources"].get(RESOURCE, 0) >= 1]
            before, there = there, {_machine(node) for node in nodes}
            for machine in sorted(before ^ there):
                print(f"{machine} {'has left' if machine in before else 'is here'}", flush=True)
            started = set(ray.util.list_named_actors())
            for node in nodes:
                _start_missing(ray, node, started, server, token)
            time.sleep(_PAUSE_SECONDS)
    except StartupError:
        raise
    except Exception as error:
        cause = next(reversed(str(error).strip().splitlines()), type(error).__name__)
        raise StartupError(f"Ray at {ray_address} does not answer: {cause}") from error


def check_reachable(address: str) -> None:
    """Raise StartupError where nothing listens: Ray tries for long, and knows no permission of macOS."""
    host, _, port = address.replace("[", "").replace("]", "").rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            reason = connect_failure(error, host)
            raise StartupError(f"Ray's head at {address} does not answer: {reason}") from error


def _start_missing(ray: Any, node: Any, started: set[str], server: str, token: str) -> None:
    """An actor that Ray cannot start yet, because another job has the resource, stays in Ray's queue."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    of_server = hashlib.sha256(f"{server} {token}".encode()).hexdigest()[:12]
    units = int(node["Resources"][RESOURCE])
    for unit in range(units):
        if (name := f"penstock-engine-{of_server}-{node['NodeID']}-{unit}") not in started:
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = {"lifetime": "detached", "max_restarts": -1, "num_cpus": 0, "resources": {RESOURCE: 1}}
            actor = ray.remote(EngineActor).options(name=name, scheduling_strategy=on_node, **options)
            actor.remote(server, token, _machine(node), unit if units > 1 else None)


def _machine(node: Any) -> str:
    """Return the operator's name for the node or, if there is none, the machine's."""
    return str(node["NodeName" if node["NodeName"] != node["NodeManagerAddress"] else "NodeManagerHostname"])


def _answers_without_token(head: str) -> bool:
    """Asked by another process: this one's mode was set when it imported Ray."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    probe = [sys.executable, "-c", _PROBE, head]
    done = subprocess.run(probe, env=environment | {"RAY_AUTH_MODE": "disabled"}, capture_output=True)
    return done.returncode == 77


class EngineActor:
    """An actor on one unit of a node. Ray makes it, and makes it again when its process has died."""

    def __init__(self, server: str, token: str, machine: str, unit: int | None) -> None:
        """`unit`: this actor's number, or None if the node has one alone."""
        environment = engine_environment(os.environ)
        device = environment.pop("PENSTOCK_DEVICE", str(unit or 0))  # A node may name its device.
        if unit is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(unit)
        self._environment = with_own_path({**environment, TOKEN_VARIABLE: token})
        self._command = [sys.executable, "-m", "scheduler.engine", "--join", server, "--device", device]
        self._command += ["--name", f"{machine}:{unit}" if unit else machine]
        self._command += ["--give-up-seconds", "60"]  # Then the place is for another server's actor.
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        while not self._engine().startswith((GAVE_UP, REFUSED)):
            time.sleep(_PAUSE_SECONDS)
        import ray

        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _engine(self) -> str:
        """Start an engine, and return its last line of output when it has ended: when its pipe is closed. Its
        process id would not show that: an orphan cannot be waited for, and ids are reused."""
        starter = [sys.executable, "-c", _DETACH, *self._command]
        pipe, last = subprocess.PIPE, ""
        process = subprocess.Popen(
            starter, env=self._environment, stdin=subprocess.DEVNULL, stdout=pipe, text=True
        )
        for last in process.stdout or ():
            print(last, end="", flush=True)
        process.wait()
        return last


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment without the variables that Ray has set: they give one thread and no
    card to an actor that reserves no CPU and no GPU."""
    gone = ("RAY_", "OMP_NUM", *(() if environment.get("CUDA_VISIBLE_DEVICES") else ("CUDA_VISIBLE",)))
    return {name: value for name, value in environment.items() if not name.startswith(gone)}
