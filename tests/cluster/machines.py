"""A Ray cluster for tests, and what may happen to its parts."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtests.processes import processes
from tests.end_to_end.serving import Served, eventually


class Machines:
    """Nodes and their head. Names are those of the operator."""

    def __init__(self, nodes: subprocess.Popen[str], environment: dict[str, str]) -> None:
        self._nodes = nodes
        self.environment = environment
        """For those that use this cluster."""
        first = self._answer()
        self.address: str = first["address"]
        self._head: int = first["head"]
        self._raylets: dict[str, int] = {"mac-1": first["raylet"]}

    def join(self, name: str) -> None:
        assert self._nodes.stdin is not None
        self._nodes.stdin.write(f"{name}\n")
        self._nodes.stdin.flush()
        self._raylets[name] = self._answer()["raylet"]

    def kill_raylet(self, name: str) -> None:
        os.kill(self._raylets[name], signal.SIGKILL)

    def kill_head(self) -> None:
        os.kill(self._head, signal.SIGKILL)

    def kill_actors(self) -> int:
        """Return how many there were."""
        workers = [one for one in processes() if one.parent in self._raylets.values()]
        actors = [one.pid for one in workers if one.command.startswith("ray::EngineActor")]
        for pid in actors:
            os.kill(pid, signal.SIGKILL)
        return len(actors)

    def _answer(self) -> Any:
        assert self._nodes.stdout is not None
        for line in self._nodes.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the cluster did not start")


@contextmanager
def machines(
    folder: Path, *, more: tuple[str, ...] = ("mac-2", "mac-3"), tokens: bool = True
) -> Iterator[Machines]:
    """Ends what is left of the cluster afterwards. Its engines end with their server. `more`: nodes beside
    the head's; `tokens`: whether Ray checks them."""
    token = folder / "ray-token"
    token.write_text(secrets.token_hex(32))
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Where the locks on devices are.
        "XDG_CACHE_HOME": str(folder),
    }
    with (folder / "ray.log").open("w") as log:
        nodes = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **own} | ({} if tokens else {"RAY_AUTH_MODE": "disabled"}),
        )
    assert nodes.stdin is not None
    assert nodes.stdout is not None
    try:
        found = Machines(nodes, own)
        for name in more:
            found.join(name)
        yield found
    finally:
        nodes.stdin.close()
        try:
            nodes.wait(30)
        except subprocess.TimeoutExpired:
            nodes.kill()
            nodes.wait()
        nodes.stdout.close()


class Door:
    """Where engines join a server, known before there is one."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            self.port: int = reserved.getsockname()[1]
        self.environment = {"XDG_CACHE_HOME": str(folder)}
        """The server's, which finds its token there."""
        self.token = folder / "penstock" / "join-token"
        self.token.parent.mkdir(exist_ok=True)
        self.token.touch(0o600)
        self.token.write_text(secrets.token_hex(32))

    def options(self, engines: str = "join") -> list[str]:
        """Return the server's."""
        return ["--engines", engines, "--engine-address", f":{self.port}"]


class RayEngines:
    """`penstock engine --ray`: keeps an engine on each node."""

    def __init__(self, cluster: Machines, door: Door) -> None:
        command = [sys.executable, "-m", "api", "engine", "--ray", cluster.address]
        command += ["--join", f"127.0.0.1:{door.port}", "--token-file", str(door.token)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **cluster.environment},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.lines += map(str.rstrip, lines)

    def said(self, line: str) -> bool:
        return line in self.lines

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@contextmanager
def ray_engines(cluster: Machines, door: Door) -> Iterator[RayEngines]:
    made = RayEngines(cluster, door)
    try:
        # A server that starts later waits for less.
        eventually(lambda: bool(made.lines), 90)
        yield made
    finally:
        made.end()


def report(served: Served) -> dict[str, Any]:
    status, found = served.get("/v1/scheduler")
    assert status == 200
    return dict(found)


def engines_ready(served: Served, count: int) -> None:
    eventually(
        lambda: [one["condition"] for one in report(served)["engines"]] == ["ready"] * count, seconds=90
    )


def engine_pids() -> dict[str, int]:
    """By machine, the process of the engine there. One that waits for the device of an engine that runs,
    as a new actor's does, comes after it."""
    found: dict[str, int] = {}
    for one in sorted(processes(), key=lambda process: process.pid):
        words = one.command.split()
        if "--join" in words and "scheduler.engine" in words:
            found.setdefault(words[words.index("--name") + 1], one.pid)
    return found
