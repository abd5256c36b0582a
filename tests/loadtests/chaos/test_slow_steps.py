"""Which steps are made slow, how the engine finds them, and what is wrong with a run of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.chaos import report
from loadtests.chaos.answers import Answer, Pause
from loadtests.chaos.findings import Findings, compare
from loadtests.chaos.run import Plan, in_order
from loadtests.chaos.saboteur import sitecustomize as saboteur
from loadtests.chaos.slow_steps import (
    CEILING_SECONDS,
    FLOOR_SECONDS,
    LEAST_PREFILL_TOKENS,
    SLOW_SECONDS,
    Guest,
    Leaving,
    Slowness,
    SlowStep,
    guests,
    slow_steps,
)
from loadtests.chaos.strikes import Strike, kinds
from loadtests.chaos.waits import Span, longest_waits, usual
from scheduler.shared.messages import Begun, StepWork

KINDS = 21
GREEDY = guests(0, 1, seed=0)[0][Guest.ANSWERED]


def test_all_kinds_come_before_one_comes_again() -> None:
    """A slow step and a hung one of each work, each with clients that leave before, amid and after it."""
    planned = slow_steps(2 * KINDS, seed=0)
    kinds = [(step.how, step.work, step.leaving) for step in planned]
    assert len(set(kinds[:KINDS])) == len(set(kinds)) == KINDS
    assert len({(how, work) for how, work, _ in kinds[:7]}) == 7
    assert planned == slow_steps(2 * KINDS, seed=0) != slow_steps(2 * KINDS, seed=1)
    assert {step.leavers for step in planned} == {(Guest.LONG,), (Guest.ANSWERED,), tuple(Guest)}


def test_device_errors_come_behind_slow_steps() -> None:
    """One in three is a timeout, which halves the chunks of prompts: no step of 512 tokens comes after it."""
    order = in_order(Plan(100, deaths=70, slow_steps=70), random.Random(1))
    slow = [place for place, one in enumerate(order) if isinstance(one, SlowStep)]
    device = [place for place, one in enumerate(order) if one == (Strike.DEVICE,)]
    assert len(order) == 140
    assert len(slow) == 70
    assert len(device) == 70 // len(kinds())
    assert max(slow) < min(device)


def test_a_slow_step_lives_where_a_hung_one_of_its_kind_may_die() -> None:
    """It takes longer than any step may take that does not compute, unless its limit is the ceiling; clients
    leave before that."""
    assert SLOW_SECONDS / 4 < FLOOR_SECONDS < SLOW_SECONDS < CEILING_SECONDS
    assert {step.work for step in slow_steps(KINDS, 0) if step.how is Slowness.WAITS} == {"prefill"}


def test_both_clients_ask_what_nobody_asked_before() -> None:
    numbers = [pair[guest].number for pair in guests(7, 5, seed=0) for guest in Guest]
    assert numbers == list(range(7, 17))
    texts = {str(pair[guest].body) for pair in guests(7, 5, seed=0) for guest in Guest}
    assert len(texts) == 10


@pytest.fixture
def order(tmp_path: Path) -> Callable[[str, StepWork, int], Path]:
    def written(how: str, work: StepWork, least_tokens: int) -> Path:
        path = tmp_path / "order"
        path.write_text(f"{how} 0 {least_tokens} {work}")
        return path

    return written


@pytest.mark.parametrize(
    ("begun", "obeyed"),
    [
        (Begun("prefill", (1,), 600, 600), True),
        (Begun("prefill", (1,), 600, 500), False),
        (Begun("decode and prefill", (1, 2), 600, 600), False),
        (Begun("decode", (1,), 600), False),
    ],
)
def test_the_engine_obeys_at_the_step_that_is_meant(
    begun: Begun, obeyed: bool, order: Callable[[str, StepWork, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once. Meanwhile the order's file has another name."""
    seen: list[list[str]] = []
    path = order("waits", "prefill", LEAST_PREFILL_TOKENS)
    monkeypatch.setattr(
        time, "sleep", lambda seconds: seen.append([one.name for one in path.parent.iterdir()])
    )
    saboteur.obey(path, begun)
    saboteur.obey(path, begun)
    assert seen == ([["order.begun"]] if obeyed else [])
    assert path.exists() is not obeyed


def test_what_a_step_orders_is_what_the_engine_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every kind of step."""
    stopped: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: stopped.append(number))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for step in slow_steps(KINDS, seed=0):
        path = tmp_path / "order"
        path.write_text(step.order.replace(str(SLOW_SECONDS), "0"))
        saboteur.obey(path, Begun(step.work, (1,), 600, 600))
        assert list(tmp_path.iterdir()) == []
    assert len(stopped) == 9


@pytest.mark.parametrize(
    ("away", "seconds"),
    [
        ([], 10.0),
        ([(0.0, 100.0)], 10.0),
        ([(105.0, 108.0)], 7.0),
        ([(105.0, 108.0), (106.0, 109.0)], 6.0),
        ([(104.0, 109.0), (106.0, 107.0)], 5.0),
        ([(90.0, 103.0), (109.0, 200.0)], 3.0),
        ([(101.0, 103.0), (104.0, 105.0), (106.0, 108.0)], 5 / 3),
        ([(90.0, 200.0)], 0.0),
    ],
)
def test_a_wait_is_what_a_stream_was_silent_for_while_the_engine_could_answer(
    away: list[Span], seconds: float
) -> None:
    """Before its first words, or after."""
    for answer in (
        Answer(first_words=Pause(100.0, 110.0, 0)),
        Answer(first_words=Pause(0.0, 0.0, 0), pauses=[Pause(100.0, 110.0, 4)]),
    ):
        assert longest_waits({3: answer, 4: Answer()}, away) == {3: pytest.approx(seconds)}


def test_one_stream_in_ten_waits_longer_than_usual() -> None:
    assert usual([float(seconds) for seconds in range(11)]) == 9.0
    assert usual([]) == 0.0


def found(**changed: object) -> Findings:
    whole = Answer("abc", finish_reason="length", output_tokens=3, ended=True, status=200)
    answers = {GREEDY.number: whole}
    step = SlowStep(Slowness.HANGS, "decode", Leaving.AMID, (Guest.LONG,))
    right = replace(
        compare([GREEDY], answers, answers, {}, {GREEDY.number: Answer("ab")}),
        slow_steps={f"{step.work}, {step.how}": 2},
        hung=1,
        server={"deaths reported as hung": 1.0, "requests whose client left": 1.0},
        waits={3: 0.5, 4: 2.0},
        usual_wait_seconds=1.0,
    )
    return replace(right, **changed)  # type: ignore[arg-type]


def test_a_right_run_is_reported_and_no_complaint() -> None:
    assert list(found().complaints()) == []
    shown = report.text("Chaos", [], list(report.of_chaos(found())))
    assert "decode, hangs" in shown
    assert "2.0 s" in shown


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hung": 0}, "1 engines were killed as hung, and 0 hung"),
        ({"hung": 2}, "1 engines were killed as hung, and 2 hung"),
        ({"left": 2}, "2 clients left, and 1 requests ended"),
        ({"held": {"leases": 1.0}}, "held without a request: {'leases': 1.0}"),
        ({"waits": {3: 0.5, 4: 2.1}}, "longer than 2.0 s beside restarts: {4: 2.1}"),
    ],
)
def test_whatever_is_wrong_is_a_complaint(changed: dict[str, object], words: str) -> None:
    """Each with its own message; none in a run without such steps."""
    assert words in "; ".join(found(**changed).complaints())
    assert list(found(**changed, slow_steps={}).complaints()) == []


@pytest.mark.parametrize(("text", "fine"), [("", True), ("ab", True), ("abc", True), ("b", False)])
def test_a_client_that_left_has_the_answers_beginning(text: str, fine: bool) -> None:
    """It is not lost: nobody waits for its end."""
    answers = {GREEDY.number: Answer("abc", finish_reason="length", output_tokens=3, ended=True, status=200)}
    judged = compare([GREEDY], answers, answers, {}, {GREEDY.number: Answer(text)})
    assert (judged.asked, judged.left, judged.lost) == (0, 1, [])
    assert (list(judged.complaints()) == []) is fine
