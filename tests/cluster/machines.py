"""A Ray cluster for tests, and what may happen to its parts."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.cli.process_table import processes
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
    """Ends what is left of the cluster afterwards. Its engines end with their front. `more`: nodes beside the
    head's; `tokens`: whether Ray checks them."""
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


def report(served: Served) -> dict[str, Any]:
    status, found = served.get("/v1/scheduler")
    assert status == 200
    return dict(found)


def engines_ready(served: Served, count: int) -> None:
    eventually(
        lambda: [one["condition"] for one in report(served)["engines"]] == ["ready"] * count, seconds=90
    )


def state(served: Served) -> str:
    return str(report(served)["cluster"]["state"])


def engine_pids() -> dict[str, int]:
    """By machine, the process of the engine there. One that waits for the device of an engine that runs,
    as a new actor's does, comes after it."""
    found: dict[str, int] = {}
    for one in sorted(processes(), key=lambda process: process.pid):
        words = one.command.split()
        if "--join" in words and "scheduler.engine" in words:
            found.setdefault(words[words.index("--name") + 1], one.pid)
    return found
