"""Engines that Ray places, one on each of three nodes, and what becomes of streams when a part of it dies.

The tests follow each other on one cluster: what one has killed stays dead, but for what comes back by itself.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator

import pytest
import trio

from loadtests.processes import is_gone
from tests.cluster.machines import (
    Door,
    Machines,
    RayEngines,
    engine_pids,
    engines_ready,
    machines,
    ray_engines,
    report,
)
from tests.cluster.streams import ask_all, check_whole
from tests.end_to_end.raw_client import Answer
from tests.end_to_end.serving import Served, eventually, start

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: 'make cluster'"),
    pytest.mark.timeout(300),
]
_SCRIPTED = ("--engine", "scripted", "--scripted", "step_seconds=0.02", "--max-slots", "8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("ray")) as found:
        yield found


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Door:
    return Door(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def kept(cluster: Machines, door: Door) -> Iterator[RayEngines]:
    with ray_engines(cluster, door) as found:
        yield found


@pytest.fixture(scope="module")
def served(kept: RayEngines, door: Door) -> Iterator[Served]:
    with start(*_SCRIPTED, *door.options(), environment=door.environment, trained=True) as server:
        engines_ready(server, 3)
        yield server


@pytest.fixture(scope="module")
def undisturbed(served: Served) -> list[Answer]:
    return trio.run(ask_all, served)


def restarts(served: Served) -> int:
    return sum(engine["restarts"] for engine in report(served)["engines"])


def places(served: Served) -> dict[str, list[str]]:
    """The engines of each machine that is linked."""
    nodes = report(served)["cluster"]["nodes"]
    return {node["machine"]: node["engines"] for node in nodes if node["living"]}


def test_each_node_has_one_engine(served: Served, undisturbed: list[Answer]) -> None:
    """All of them serve, and the report says who is where."""
    found = report(served)["cluster"]
    assert (found["state"], found["port"] > 0) == ("listening", True)
    assert any("plain text" in line and str(found["port"]) in line for line in served.lines)
    assert sorted(len(engines) for engines in places(served).values()) == [1, 1, 1]
    for engine in "012":
        assert served.metric("penstock_generated_tokens_total", f'engine="{engine}"') > 0
    assert all(answer.finish_reason == "length" for answer in undisturbed)


def test_a_killed_engine_is_replaced_on_its_node(
    served: Served, cluster: Machines, undisturbed: list[Answer]
) -> None:
    """A killed actor changes nothing: the engines of all three go on."""
    pid = engine_pids()["mac-1"]
    answers = trio.run(ask_all, served, lambda: os.kill(pid, signal.SIGKILL))
    check_whole(answers, undisturbed)
    engines_ready(served, 3)
    assert engine_pids()["mac-1"] != pid
    killed = []
    check_whole(trio.run(ask_all, served, lambda: killed.append(cluster.kill_actors())), undisturbed)
    assert killed == [3]
    assert restarts(served) == 1


def test_a_killed_raylet_takes_no_engine_with_it(
    served: Served, kept: RayEngines, cluster: Machines, undisturbed: list[Answer]
) -> None:
    """Also when Ray has noticed. When the node joins again it is the same engine's."""
    [engine] = places(served)["mac-3"]
    answers = trio.run(ask_all, served, lambda: cluster.kill_raylet("mac-3"))
    check_whole(answers, undisturbed)
    eventually(lambda: kept.said("mac-3 has left"), 60)
    check_whole(trio.run(ask_all, served), undisturbed)
    assert restarts(served) == 1
    cluster.join("mac-3")
    eventually(lambda: kept.lines.count("mac-3 is here") == 2, 60)
    assert places(served)["mac-3"] == [engine]
    assert restarts(served) == 1
    assert len(report(served)["engines"]) == 3


def test_who_keeps_engines_may_die(
    served: Served, kept: RayEngines, cluster: Machines, door: Door, undisturbed: list[Answer]
) -> None:
    """None is lost, and an engine that ends meanwhile comes back: that is the actor's work. The next one
    finds all actors that there are."""
    cluster.join("mac-4")
    engines_ready(served, 4)
    pid = engine_pids()["mac-4"]

    def strike() -> None:
        kept.process.kill()
        os.kill(pid, signal.SIGKILL)

    check_whole(trio.run(ask_all, served, strike), undisturbed)
    kept.process.wait()
    engines_ready(served, 4)
    assert restarts(served) == 2
    with ray_engines(cluster, door) as other:
        eventually(lambda: other.said("mac-4 is here"), 60)
        check_whole(trio.run(ask_all, served), undisturbed)
    assert sorted(map(len, places(served).values())) == [1, 1, 1, 1]
    assert restarts(served) == 2


def test_a_killed_head_stops_nothing_but_new_engines(
    served: Served, cluster: Machines, door: Door, undisturbed: list[Answer]
) -> None:
    """Ray is gone for good: the server stays ready, who keeps engines says so and ends, and an engine that
    dies leaves the others."""
    with ray_engines(cluster, door) as last:
        eventually(lambda: last.said("mac-4 is here"), 60)
        answers = trio.run(ask_all, served, cluster.kill_head)
        check_whole(answers, undisturbed)
        assert last.process.wait(120) == 1
    assert any("Ray" in line or "ray" in line for line in last.lines)
    assert served.get("/ready")[0] == 200
    pid = engine_pids()["mac-2"]
    check_whole(trio.run(ask_all, served, lambda: os.kill(pid, signal.SIGKILL)), undisturbed)
    assert served.get("/ready")[0] == 200


def test_engines_end_with_their_server(served: Served) -> None:
    pids = list(engine_pids().values())
    served.process.kill()
    eventually(lambda: all(map(is_gone, pids)), 30)
