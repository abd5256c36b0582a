"""Two real models in one server: real processes, killed, unloaded and loaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest
import trio

from loadtests.processes import children, resident_bytes
from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, eventually, serving

FILE = """
[[model]]
name = "planner"
model = "embedded"

[[model]]
name = "titles"
model = "embedded"
"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The embedded model twice, under two names."""
    path = tmp_path_factory.mktemp("models") / "models.toml"
    path.write_text(FILE)
    with serving("--models", str(path), trained=True) as served:
        yield served


def state(served: Served, name: str) -> Any:
    return served.get(f"/v1/models/{name}")[1]["state"]


def unload(served: Served, name: str) -> None:
    with urlopen(Request(f"{served.url}/v1/models/{name}/unload", method="POST"), timeout=10) as answer:
        assert answer.status == 202
    eventually(lambda: state(served, name) == "unloaded")


async def ask_each(served: Served) -> list[Answer]:
    answers = [Answer(), Answer()]

    async def one(number: int, name: str) -> None:
        answers[number] = await ask(
            served.port, "Tell me a story.", model=name, max_tokens=200, ignore_eos=True
        )

    async with trio.open_nursery() as nursery:
        for number, name in enumerate(("planner", "titles")):
            nursery.start_soon(one, number, name)
    return answers


def test_a_killed_engine_is_nothing_to_the_other_model(farm: Served) -> None:
    """Both answers are whole and as undisturbed; the other model's engine is not restarted, and its stream
    has no gap while the killed one's pauses."""
    expected = trio.run(ask_each, farm)
    assert [answer.status for answer in expected] == [200, 200]

    async def killed() -> list[Answer]:
        answers: list[Answer] = []

        async def both() -> None:
            answers.extend(await ask_each(farm))

        before = farm.metric("penstock_generated_tokens_total", 'model="planner"')
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both)
            await trio.to_thread.run_sync(
                eventually,
                lambda: farm.metric("penstock_generated_tokens_total", 'model="planner"') > before + 20,
            )
            os.kill(children(farm.process.pid)[0], signal.SIGKILL)
        return answers

    for answer, wanted in zip(trio.run(killed), expected, strict=True):
        assert (answer.text, answer.finish_reason) == (wanted.text, wanted.finish_reason)
    assert farm.metric("penstock_engine_restarts_total", 'model="planner"') == 1
    assert farm.metric("penstock_engine_restarts_total", 'model="titles"') == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cycles", [2, pytest.param(6, marks=pytest.mark.long)])
def test_the_memory_of_an_unloaded_model_is_back(farm: Served, cycles: int) -> None:
    """Its process is gone, and cycles of load and unload do not grow the server."""
    trio.run(ask_each, farm)
    assert len(children(farm.process.pid)) == 2
    unload(farm, "titles")
    assert len(children(farm.process.pid)) == 1
    resident: list[int] = []
    for _ in range(cycles):
        answer = trio.run(lambda: ask(farm.port, "hello", model="titles", max_tokens=4))
        assert (answer.status, answer.errors) == (200, [])
        unload(farm, "titles")
        resident.append(resident_bytes(farm.process.pid))
    assert len(children(farm.process.pid)) == 1
    half = cycles // 2
    assert max(resident[half:]) < max(resident[:half]) + (16 << 20)
