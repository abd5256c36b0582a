"""Two real models in one server: real processes, killed, unloaded and loaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from loadtests.processes import children, resident_bytes
from tests.end_to_end.raw_client import answers, check_the_same
from tests.end_to_end.serving import Served, eventually, serving

FILE = """
[[model]]
name = "planner"
model = "embedded"

[[model]]
name = "titles"
model = "embedded"
"""
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("Tell me a story.", {"model": name, "max_tokens": 200, "ignore_eos": True})
    for name in ("planner", "titles")
]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The embedded model twice, under two names."""
    path = tmp_path_factory.mktemp("models") / "models.toml"
    path.write_text(FILE)
    with serving("--models", str(path), trained=True) as served:
        yield served


def unload(served: Served, name: str) -> None:
    assert served.post(f"/v1/models/{name}/unload")[0] == 202
    eventually(lambda: served.get(f"/v1/models/{name}")[1]["state"] == "unloaded")


def test_a_killed_engine_is_nothing_to_the_other_model(farm: Served) -> None:
    """Both answers are whole and as undisturbed; the other model's engine is not restarted."""
    expected = answers(farm.port, ASKED)
    before = farm.metric("penstock_generated_tokens_total", 'model="planner"')

    def kill() -> None:
        eventually(lambda: farm.metric("penstock_generated_tokens_total", 'model="planner"') > before + 20)
        os.kill(children(farm.process.pid)[0], signal.SIGKILL)

    check_the_same(answers(farm.port, ASKED, kill), expected)
    assert farm.metric("penstock_engine_restarts_total", 'model="planner"') == 1
    assert farm.metric("penstock_engine_restarts_total", 'model="titles"') == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cycles", [2, pytest.param(6, marks=pytest.mark.long)])
def test_the_memory_of_an_unloaded_model_is_back(farm: Served, cycles: int) -> None:
    """Its process is gone, and cycles of load and unload do not grow the server."""
    answers(farm.port, ASKED)
    assert len(children(farm.process.pid)) == 2
    unload(farm, "titles")
    assert len(children(farm.process.pid)) == 1
    resident: list[int] = []
    for _ in range(cycles):
        status, _ = farm.post(model="titles", max_tokens=4)
        assert status == 200
        unload(farm, "titles")
        resident.append(resident_bytes(farm.process.pid))
    assert len(children(farm.process.pid)) == 1
    half = cycles // 2
    assert max(resident[half:]) < max(resident[:half]) + (16 << 20)
