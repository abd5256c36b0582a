"""One model over two machines that Ray has: a rank on each, and either may die."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.cluster.machines import Door, engine_pids, engines_ready, machines, ray_engines, report
from tests.cluster.streams import check_whole
from tests.end_to_end.raw_client import Answer
from tests.end_to_end.serving import Served, eventually, start
from tests.end_to_end.test_ranks import ask_all

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: 'make cluster'"),
    pytest.mark.timeout(240),
]
_HOSTS = [{"ssh": "mac-2", "ips": ["127.0.0.1"]}, {"ssh": "mac-3", "ips": ["127.0.0.1"]}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("ray")
    file = folder / "hosts.json"
    file.write_text(json.dumps(_HOSTS))
    door = Door(folder)
    with (
        machines(folder) as cluster,
        ray_engines(cluster, door),
        start(
            *door.options(f"join:{file}"), environment=cluster.environment | door.environment, trained=True
        ) as server,
    ):
        engines_ready(server, 1)
        yield server


def rank_1() -> int:
    return engine_pids()["mac-3"]


def test_two_machines_are_one_engine_and_one_that_dies_is_a_pause(served: Served) -> None:
    """The embedded model, half on each; rank 1 is killed while all streams flow."""
    (engine,) = report(served)["engines"]
    assert len([node for node in report(served)["cluster"]["nodes"] if node["engines"]]) == 2
    undisturbed: list[Answer] = []
    trio.run(ask_all, served, undisturbed)
    before = served.metric("penstock_generated_tokens_total")
    answers: list[Answer] = []

    async def killed() -> None:
        def flowing() -> bool:
            return served.metric("penstock_generated_tokens_total") >= before + 60

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all, served, answers)
            await trio.to_thread.run_sync(eventually, flowing, 60)
            os.kill(rank_1(), signal.SIGKILL)

    trio.run(killed)
    check_whole(answers, undisturbed)
    assert report(served)["engines"][0]["restarts"] == engine["restarts"] + 1
