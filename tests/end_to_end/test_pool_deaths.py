"""Two real engines behind one server, of which one dies: its streams go on at the other, to the byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from loadtests.chaos.strikes import Strike, strike
from loadtests.processes import children
from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, eventually, serving
from tests.fakes.faulty_backend import MOST_STEP_TOKENS, holding_in_engine_process

STREAMS = 12
ENGINES = ("0", "1")
_MIDDLE_TOKENS = 60
"""By each engine, when one of them is struck."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file `hold` in it stops both engines in the middle of their streams."""
    made = tmp_path_factory.mktemp("pair")
    source = holding_in_engine_process(1, _MIDDLE_TOKENS + STREAMS * MOST_STEP_TOKENS, made)
    (made / "sitecustomize.py").write_text(f"from loadtests.chaos.saboteur import sitecustomize\n{source}")
    return made


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[Served]:
    """The embedded model twice; a stopped engine is found after seconds."""
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}
    with serving("--engines", "2", "--stall-seconds", "10", environment=environment, trained=True) as served:
        yield served


@pytest.fixture(scope="module")
def undisturbed(pair: Served) -> list[Answer]:
    all_ready(pair)
    return trio.run(ask_all, pair, [])


def fields_of(number: int) -> dict[str, Any]:
    """Every second one greedy, the others sampled; long enough that none ends before the death."""
    sampled = {"temperature": 0.9, "top_p": 0.95, "seed": 40 + number} if number % 2 else {}
    return {"max_tokens": 100 + 4 * number, "ignore_eos": True, **sampled}


async def ask_all(served: Served, answers: list[Answer]) -> list[Answer]:
    """All at once, in their order."""
    found = [Answer()] * STREAMS

    async def one(number: int) -> None:
        found[number] = await ask(served.port, f"agent {number} " * (number + 1), **fields_of(number))

    async with trio.open_nursery() as nursery:
        for number in range(STREAMS):
            nursery.start_soon(one, number)
    answers.extend(found)
    return answers


def report(served: Served) -> dict[str, Any]:
    status, found = served.get("/v1/scheduler")
    assert status == 200
    return dict(found)


def all_ready(served: Served) -> None:
    eventually(
        lambda: [one["condition"] for one in report(served)["engines"]] == ["ready"] * len(ENGINES), 60
    )


def generated(served: Served) -> list[float]:
    """Tokens, by engine: totals, so that a busy machine misses no moment."""
    return [served.metric("penstock_generated_tokens_total", f'engine="{engine}"') for engine in ENGINES]


def both_decode(served: Served, before: list[float]) -> bool:
    """Whether each engine has streams that it has given tokens to."""
    return all(now >= then + _MIDDLE_TOKENS for now, then in zip(generated(served), before, strict=True))


def restarts(served: Served) -> int:
    return sum(engine["restarts"] for engine in report(served)["engines"])


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Strike.KILL, "killed"),
        pytest.param(Strike.STOP, "hung", marks=pytest.mark.long),
        pytest.param(Strike.MEMORY, "out_of_memory", marks=pytest.mark.long),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Strike) else value,
)
def test_streams_of_a_dead_engine_go_on_at_the_other(
    pair: Served, folder: Path, undisturbed: list[Answer], kind: Strike, cause: str
) -> None:
    """Killed, stopped or out of memory: every answer is whole, sent once, and to the byte the undisturbed
    one."""
    all_ready(pair)
    before, resumed = restarts(pair), pair.metric("penstock_resumed_requests_total")
    tokens = generated(pair)

    async def struck() -> list[Answer]:
        answers: list[Answer] = []
        hold = folder / "hold"
        hold.touch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all, pair, answers)
            await trio.to_thread.run_sync(partial(eventually, lambda: both_decode(pair, tokens), 60))
            strike(children(pair.process.pid)[0], kind)
            hold.unlink()
        return answers

    for number, (answer, expected) in enumerate(zip(trio.run(struck), undisturbed, strict=True)):
        assert (answer.status, answer.errors) == (200, []), f"stream {number}"
        assert answer.text == expected.text, f"stream {number}"
        assert answer.finish_reason == expected.finish_reason
        assert answer.events.count("[DONE]") == 1
        assert answer.events[-1] == "[DONE]"
    eventually(lambda: restarts(pair) == before + 1)
    assert pair.metric("penstock_resumed_requests_total") > resumed
    assert cause in [engine["last_death_cause"] for engine in report(pair)["engines"]]
