"""The agent: `python -m scheduler.cluster.agent --fd N --ray ADDRESS`. The only process that imports Ray.

Ray puts threads and signal handlers into a process that imports it, and ends a driver when its head is gone:
so it gets a process of its own, on which nothing depends. The agent knows no engine: it reports which nodes
there are, and keeps an actor on each of their places. The server starts the agent again when it ends.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    Nodes,
    RayNode,
    ServerAddress,
    agent_inbound,
)
from scheduler.cluster.engine_actor import EngineActor
from scheduler.shared.framing import encode
from scheduler.shared.local_network import connect_failure

RESOURCE = "mlx"
_POLL_SECONDS = 1.0
_SIGN_OF_LIFE_SECONDS = 5.0
_CONNECT_SECONDS = 45.0
_ANSWER_SECONDS = 10.0
"""Bound on a call to Ray: if there is no answer by then, its head is gone and none will come."""
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
"""A program that asks the head without a token, and exits with 77 if the head answers."""
_ANSWERED = 77


class AgentUnusable(Exception):
    """The agent cannot work; the message is a sentence for the operator that names the remedy."""


class ServerLink:
    """The agent's end of the link to the server."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._reader = agent_inbound()

    def server_address(self) -> ServerAddress:
        """Return the server's first message. End this process if the server is gone."""
        while data := self._link.recv(1 << 16):
            for message in self._reader.feed(data):
                return message
        os._exit(0)

    def send(self, message: FromAgent) -> None:
        """Send a message, from any thread. End this process if the server is gone."""
        try:
            self._link.sendall(encode(message))
        except OSError:
            os._exit(0)

    def wait_for_its_end(self) -> None:
        while self._link.recv(1 << 16):
            pass


class Deadline:
    """Ends this process when Ray does not answer in time: a call to Ray cannot be interrupted."""

    def __init__(self, server: ServerLink) -> None:
        self._server = server
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
                if self._until is not None and time.monotonic() > self._until:
                    # Holding the lock: a thread that is done now sends what it has found, on the same link.
                    end(self._server, self._what)


def end(server: ServerLink, reason: str) -> NoReturn:
    """Send the server the reason, and end at once: Ray's own exit may take a minute when its head is gone."""
    server.send(AgentRefused(reason))
    os._exit(1)


class RayNodes:
    """A connection to Ray, made at once: it lists the nodes, and starts the actors on them."""

    def __init__(self, address: str) -> None:
        """Raise AgentUnusable."""
        try:
            import ray.util
        except ImportError as error:
            raise AgentUnusable(f"--engines ray needs pip install 'penstock[cluster]' ({error})") from error
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
            raise AgentUnusable(f"Ray at {address} cannot be joined: {_cause(error)}") from error
        head = self._ray.get_runtime_context().gcs_address
        if _answers_without_token(head):
            raise AgentUnusable(f"Ray at {head} answers without a token: {_NO_TOKENS}")
        self.address: str = self._ray.util.get_node_ip_address()

    def nodes(self) -> tuple[RayNode, ...]:
        """Return the living nodes that have places for engines."""
        return tuple(
            RayNode(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                name=node["NodeName"],
                address=node["NodeManagerAddress"],
                places=int(node["Resources"][RESOURCE]),
            )
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1
        )

    def keep_engines(self, nodes: Sequence[RayNode], server_address: ServerAddress) -> None:
        """Start an actor on each place of these nodes that has none. An actor that Ray cannot start yet,
        because another job has the resource, stays in Ray's queue."""
        wanted = {
            _actor(server_address, node, unit): (node, unit) for node in nodes for unit in range(node.places)
        }
        for name in wanted.keys() - set(self._ray.util.list_named_actors()):
            self._start(name, *wanted[name], server_address)

    def _start(self, name: str, node: RayNode, unit: int, server_address: ServerAddress) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        (
            self._ray.remote(EngineActor)
            .options(
                name=name,
                # The actor outlives this process, and Ray starts it again when the actor's own process has
                # ended.
                lifetime="detached",
                max_restarts=-1,
                num_cpus=0,
                resources={RESOURCE: 1},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote(
                server_address.addresses or (self.address,),
                server_address.port,
                server_address.token,
                server_address.blas,
                node.machine,
                unit if node.places > 1 else None,
            )
        )


def _actor(server_address: ServerAddress, node: RayNode, unit: int) -> str:
    """Return the actor's name. A server with another token has actors of its own, as the next one does unless
    a file keeps the token."""
    server = hashlib.sha256(server_address.token.encode()).hexdigest()[:12]
    return f"penstock-engine-{server}-{node.id}-{unit}"


def check_reachable(address: str) -> None:
    """Raise AgentUnusable if nothing accepts connections at this address. Ray would try for a minute; a
    connection to a closed port fails at once."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        reason = connect_failure(error, host.strip("[]"))
        raise AgentUnusable(f"Ray's head at {address} does not answer: {reason}") from error


def _answers_without_token(head: str) -> bool:
    """Return whether the head answers a process without a token: another one than this, whose mode was set
    when it imported Ray."""
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
    """Return the last line of the error: Ray's errors end with the line that names the cause."""
    return next(reversed(str(error).strip().splitlines()), type(error).__name__)


def token_refusal(environment: Mapping[str, str]) -> str | None:
    """Return why Ray must not be used with this environment, or None if it may."""
    return None if environment.get("RAY_AUTH_MODE", "").lower() == "token" else _NO_TOKENS


def _report(
    server: ServerLink, ray_nodes: RayNodes, deadline: Deadline, server_address: ServerAddress
) -> NoReturn:
    """Report which nodes there are, and keep engines on them, for ever."""
    last, sent_at = None, 0.0
    while True:
        deadline.begin(_ANSWER_SECONDS, f"Ray's head has not answered for {_ANSWER_SECONDS:g} s")
        try:
            nodes = ray_nodes.nodes()
            ray_nodes.keep_engines(nodes, server_address)
        except Exception as error:
            end(server, f"Ray's head does not answer: {_cause(error)}")
        deadline.done()
        now = time.monotonic()
        if nodes != last or now - sent_at >= _SIGN_OF_LIFE_SECONDS:
            server.send(Nodes(ray_nodes.address, nodes))
            last, sent_at = nodes, now
        time.sleep(_POLL_SECONDS)


def run(link: socket.socket, address: str) -> None:
    """Run the agent. Return when the server is gone."""
    server = ServerLink(link)
    server_address = server.server_address()
    if (refusal := token_refusal(os.environ)) is not None:
        end(server, refusal)
    deadline = Deadline(server)
    deadline.begin(_CONNECT_SECONDS, f"Ray at {address} has not answered for {_CONNECT_SECONDS:g} s")
    try:
        ray_nodes = RayNodes(address)
    except AgentUnusable as refused:
        end(server, str(refused))
    deadline.done()
    threading.Thread(target=_report, args=(server, ray_nodes, deadline, server_address), daemon=True).start()
    server.wait_for_its_end()


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="scheduler.cluster.agent")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--ray", required=True)
    options = parser.parse_args()
    run(socket.socket(fileno=options.fd), options.ray)
    # The server is gone, and nobody waits for Ray to disconnect.
    os._exit(0)


if __name__ == "__main__":
    main()
