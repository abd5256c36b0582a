"""What the host does in a step, counted: operations of the graph, Python calls, files opened."""

from __future__ import annotations

import sys

import pytest

from loadtests.step.steps import counted_calls
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.planning.pace import PrefillPace
from scheduler.shared.messages import Submit
from tests.contracts.journal import prompt_of, request
from tests.scheduler.engine.mlx.conftest import Tiny


def _steady(tiny: Tiny, rows: int) -> EngineLoop:
    loop = EngineLoop(tiny.backend(), 64, PrefillPace(1024), lambda: 1.0, speculation=Speculation())
    commands: list[Submit] = [request(number, prompt_of(20, number), 500) for number in range(rows)]
    for _ in range(8):
        loop.iterate(commands)
        commands = []
    return loop


def _turn_calls(tiny: Tiny, rows: int) -> int:
    loop, model = _steady(tiny, rows), type(tiny.model).__call__.__code__
    with counted_calls(lambda code: code is model) as calls:
        loop.iterate(())
    assert calls.model > 100, "the model runs in this turn"
    return calls.others


def test_a_turn_costs_few_calls_beside_the_model(tiny: Tiny) -> None:
    """Python functions: planning, sampling and reporting, for one row and for each more."""
    one, many = _turn_calls(tiny, 1), _turn_calls(tiny, 33)
    assert one <= 400
    assert (many - one) / 32 <= 60


def test_a_turn_without_a_reading_opens_no_file(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is read four times a second, not in each step."""
    loop, opened = _steady(tiny, 1), list[str]()
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    before = len(opened)
    for _ in range(20):
        loop.iterate(())
    assert len(opened) == before
