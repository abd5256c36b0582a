"""The agent: `python -m scheduler.cluster.agent --fd N --ray ADDRESS`. The only process that imports Ray.

Ray puts threads and signal handlers into a process that imports it, and ends a driver when its head is gone:
so it may have this process, which nothing hangs on. It knows no engine: it says which nodes there are, and
starts host processes on them. The front starts it again when it ends.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from uuid import uuid4

from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    HostRefused,
    HostStarted,
    Node,
    Nodes,
    StartHost,
    agent_inbound,
)
from scheduler.cluster.engine_host import EngineHost
from scheduler.link.framing import encode

RESOURCE = "mlx"
_POLL_SECONDS = 1.0
_SIGN_OF_LIFE_SECONDS = 5.0
_CONNECT_SECONDS = 45.0
_ANSWER_SECONDS = 10.0
"""A question that Ray has not answered by then is not going to be: its head is gone."""
_START_SECONDS = 50.0
"""For a worker process, its actor, and the host process that connects to the front."""
_NO_TOKENS = (
    "Ray must check tokens, or anybody who reaches its port runs code on every machine: on one machine run"
    " `ray get-auth-token --generate`, copy ~/.ray/auth_token to all, and set RAY_AUTH_MODE=token for `ray"
    " start` on each and for `penstock serve`"
)
_PROBE = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).get_all_node_info(timeout=3)
except AuthenticationError:
    sys.exit(0)
sys.exit(77)
"""
"""Asks the head without a token. Exits with 77 if that is answered."""
_ANSWERED = 77


class Refused(Exception):
    """Why the agent cannot work: a sentence that tells the operator what to do."""


class Front:
    """The agent's end of the link to the front."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def send(self, message: FromAgent) -> None:
        """From any thread. Ends the process if the front is gone."""
        try:
            with self._lock:
                self._link.sendall(encode(message))
        except OSError:
            os._exit(0)

    def serve(self, start: Callable[[StartHost], None]) -> None:
        """Return when the front is gone. A start waits for no other."""
        reader = agent_inbound()
        while data := self._link.recv(1 << 16):
            for message in reader.feed(data):
                threading.Thread(target=start, args=(message,), daemon=True).start()


class Deadline:
    """Ends the process when Ray does not answer: its calls cannot be interrupted."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._lock = threading.Lock()
        self._until: float | None = None
        self._what = ""
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, seconds: float, what: str) -> None:
        with self._lock:
            self._until, self._what = time.monotonic() + seconds, what

    def done(self) -> None:
        with self._lock:
            self._until = None

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            with self._lock:
                late = self._until is not None and time.monotonic() > self._until
            if late:
                end(self._front, self._what)


def end(front: Front, reason: str) -> NoReturn:
    """Say why, and end at once: Ray's own way out may take a minute when its head is gone."""
    front.send(AgentRefused(reason))
    os._exit(1)


class RayNodes:
    """Connected to Ray once it is made."""

    def __init__(self, address: str) -> None:
        """Raise Refused."""
        try:
            import ray.util
        except ImportError as error:
            raise Refused(f"--engines ray needs pip install 'penstock[cluster]' ({error})") from error
        self._ray: Any = ray
        check_reachable(address)
        try:
            # An address is always given: Ray never starts a cluster of its own here.
            self._ray.init(
                address=address,
                namespace="penstock",
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            raise Refused(f"Ray at {address} cannot be joined: {_cause(error)}") from error
        head = self._ray.get_runtime_context().gcs_address
        if _answers_without_token(head):
            raise Refused(f"Ray at {head} answers without a token: {_NO_TOKENS}")
        self.address: str = self._ray.util.get_node_ip_address()

    def nodes(self) -> tuple[Node, ...]:
        """Return the living ones that have places for engines."""
        return tuple(
            Node(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                name=node["NodeName"],
                address=node["NodeManagerAddress"],
                places=int(node["Resources"][RESOURCE]),
            )
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1
        )

    def start(self, message: StartHost) -> None:
        """Start a host process. Raise Refused."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Detached: it holds the resource also when this process has ended.
        actor = (
            self._ray.remote(EngineHost)
            .options(
                name=f"engine-host-{uuid4()}",
                lifetime="detached",
                max_restarts=0,
                num_cpus=0,
                resources={RESOURCE: 1},
                scheduling_strategy=NodeAffinitySchedulingStrategy(message.node_id, soft=False),
            )
            .remote(message.order.encode())
        )
        try:
            self._ray.get(actor.pid.remote(), timeout=_START_SECONDS)
        except self._ray.exceptions.GetTimeoutError as error:
            self._ray.kill(actor)
            raise Refused(
                f"Ray did not start it within {_START_SECONDS:g} s: another job may have the node's"
                f" resource {RESOURCE!r}"
            ) from error
        except self._ray.exceptions.RayError as error:
            raise Refused(f"Ray cannot start it there: {_cause(error)}") from error


def check_reachable(address: str) -> None:
    """Ray tries for a minute; a port on which nobody listens says so at once. Raise Refused."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise Refused(f"Ray's head at {address} does not answer: {error}") from error


def _answers_without_token(head: str) -> bool:
    """Asked by a process of its own: the mode of this one is set when Ray is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, head],
        env=environment | {"RAY_AUTH_MODE": "disabled"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_CONNECT_SECONDS,
        check=False,
    )
    return done.returncode == _ANSWERED


def _cause(error: BaseException) -> str:
    """The last line: Ray's own errors end with the one that they are about."""
    return next(reversed(str(error).strip().splitlines()), type(error).__name__)


def token_refusal(environment: Mapping[str, str]) -> str | None:
    """Return why Ray may not be used as this environment sets it up; None: it may."""
    return None if environment.get("RAY_AUTH_MODE", "").lower() == "token" else _NO_TOKENS


def _report(front: Front, ray_nodes: RayNodes, deadline: Deadline) -> NoReturn:
    """Tell the front which nodes there are, for ever."""
    last, told_at = None, 0.0
    while True:
        deadline.begin(_ANSWER_SECONDS, f"Ray's head has not answered for {_ANSWER_SECONDS:g} s")
        try:
            nodes = ray_nodes.nodes()
        except Exception as error:
            end(front, f"Ray's head does not answer: {_cause(error)}")
        deadline.done()
        now = time.monotonic()
        if nodes != last or now - told_at >= _SIGN_OF_LIFE_SECONDS:
            front.send(Nodes(ray_nodes.address, nodes))
            last, told_at = nodes, now
        time.sleep(_POLL_SECONDS)


def run(link: socket.socket, address: str) -> None:
    """Return when the front is gone."""
    front = Front(link)
    if (refusal := token_refusal(os.environ)) is not None:
        end(front, refusal)
    deadline = Deadline(front)
    deadline.begin(_CONNECT_SECONDS, f"Ray at {address} has not answered for {_CONNECT_SECONDS:g} s")
    try:
        ray_nodes = RayNodes(address)
    except Refused as refused:
        end(front, str(refused))
    deadline.done()
    threading.Thread(target=_report, args=(front, ray_nodes, deadline), daemon=True).start()

    def start(message: StartHost) -> None:
        try:
            ray_nodes.start(message)
        except Exception as error:
            front.send(HostRefused(message.start_id, _cause(error)))
        else:
            front.send(HostStarted(message.start_id))

    front.serve(start)


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="scheduler.cluster.agent")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--ray", required=True)
    options = parser.parse_args()
    run(socket.socket(fileno=options.fd), options.ray)
    # The front is gone, and nobody waits for Ray's goodbye.
    os._exit(0)


if __name__ == "__main__":
    main()
