"""The embedded model on three nodes: each machine finds it for itself, and streams stay the same when parts
of the cluster die."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
import trio

from tests.cluster.machines import Door, Machines, engine_pids, engines_ready, machines, ray_engines
from tests.cluster.streams import ask_all, check_whole
from tests.end_to_end.serving import Served, start, stop

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: 'make cluster'"),
    pytest.mark.timeout(300),
]


def strike(served: Served, cluster: Machines) -> None:
    """An engine, the raylet of another one's node, and the only way to Ray."""
    os.kill(engine_pids()["mac-1"], signal.SIGKILL)
    cluster.kill_raylet("mac-3")
    cluster.kill_head()


def test_streams_of_a_real_model_survive_an_engine_a_node_and_the_head_at_once(tmp_path: Path) -> None:
    door = Door(tmp_path)
    with (
        machines(tmp_path) as cluster,
        ray_engines(cluster, door) as kept,
        start(*door.options(), environment=cluster.environment | door.environment, trained=True) as served,
    ):
        engines_ready(served, 3)
        undisturbed = trio.run(ask_all, served)
        answers = trio.run(ask_all, served, lambda: strike(served, cluster))
        check_whole(answers, undisturbed)
        assert kept.process.wait(120) == 1
        assert served.get("/ready")[0] == 200
        stop(served)
