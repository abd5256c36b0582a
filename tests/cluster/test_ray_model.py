"""The embedded model on three nodes: each machine finds it for itself, and streams stay the same when parts
of the cluster die."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
import trio

from tests.cluster.machines import Machines, engine_pids, engines_ready, machines, report
from tests.cluster.streams import ask_all, check_whole
from tests.end_to_end.serving import Served, eventually, start, stop

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: 'make cluster'"),
    pytest.mark.timeout(300),
]


def strike(served: Served, cluster: Machines) -> None:
    """An engine, the raylet of another one's node, and the agent's only way to Ray."""
    os.kill(engine_pids()["mac-1"], signal.SIGKILL)
    cluster.kill_raylet("mac-3")
    cluster.kill_head()


def test_streams_of_a_real_model_survive_an_engine_a_node_and_the_head_at_once(tmp_path: Path) -> None:
    with machines(tmp_path) as cluster:
        ray = ("--engines", "ray", "--ray-address", cluster.address)
        with start(*ray, environment=cluster.environment, trained=True) as served:
            engines_ready(served, 3)
            undisturbed = trio.run(ask_all, served)
            answers = trio.run(ask_all, served, lambda: strike(served, cluster))
            check_whole(answers, undisturbed)
            eventually(lambda: report(served)["cluster"]["state"] == "lost", 60)
            assert served.get("/ready")[0] == 200
            stop(served)
