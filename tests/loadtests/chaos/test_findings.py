"""The comparison of answers finds every difference, and nothing else; a slow step is the one meant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtests.chaos.findings import Findings, compare
from loadtests.chaos.questions import poison, questions
from loadtests.chaos.saboteur.sitecustomize import POISON_TOKENS
from loadtests.client import Answer
from loadtests.record import Outcome

ASKED = questions(40, seed=3)
GREEDY = next(one.number for one in ASKED if one.greedy and one.body["stream"])
SAMPLED = [question.number for question in ASKED if not question.greedy]


def whole(number: int, **changed: Any) -> Answer:
    """Return a good answer to this question."""
    answer = Answer(text=f"text {number}", finish_reason="length", output_tokens=8, is_over=True)
    return replace(answer, **{"outcome": Outcome.OK, "status": 200, **changed})


UNDISTURBED = {question.number: whole(question.number) for question in ASKED}


def found(**changed: Any) -> Findings:
    """Return findings with the first greedy question's answer changed."""
    disturbed = {**UNDISTURBED, GREEDY: whole(GREEDY, **changed)}
    return compare(ASKED, UNDISTURBED, UNDISTURBED, disturbed)


def test_equal_answers_are_no_finding() -> None:
    """And the report says so."""
    assert list(found().complaints()) == []
    assert "delivered once, and equals the undisturbed one" in "\n".join(found().lines())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"outcome": Outcome.CUT, "finish_reason": None}, "lost"),
        ({"is_over": False}, "lost"),
        ({"outcome": Outcome.STREAM_ERROR, "detail": "engine_lost"}, "engine_lost"),
        ({"disorder": "an event after the end"}, "after the end"),
        ({"text": "another"}, "greedy"),
        ({"text": "text 0text 0", "output_tokens": 500}, "too many tokens"),
        ({"reasoning": "hm"}, "greedy"),
        ({"calls": ["look_up {}"]}, "greedy"),
        ({"finish_reason": "stop"}, "greedy"),
    ],
)
def test_whatever_is_wrong_is_a_complaint(changed: dict[str, Any], words: str) -> None:
    """Each with its own message."""
    assert words in "; ".join(found(**changed).complaints())
    disturbed = {number: answer for number, answer in UNDISTURBED.items() if number != GREEDY}
    assert compare(ASKED, UNDISTURBED, {}, disturbed).lost == [GREEDY], "never answered"


def test_a_sampled_answer_may_part_and_many_may_not() -> None:
    """One is within float32's limits; all of them are not. The control run is counted, not judged."""
    one = {**UNDISTURBED, SAMPLED[0]: whole(SAMPLED[0], text="another")}
    every = {**UNDISTURBED, **{number: whole(number, text="another") for number in SAMPLED}}
    assert list(compare(ASKED, UNDISTURBED, every, one).complaints()) == []
    assert compare(ASKED, UNDISTURBED, every, one).control_parted == SAMPLED
    (complaint,) = compare(ASKED, UNDISTURBED, UNDISTURBED, every).complaints()
    assert "too many sampled" in complaint


@pytest.mark.parametrize(
    ("end", "fine"), [("poisonous_request: x", True), ("engine_lost", False), ("", False)]
)
def test_the_poison_must_end_as_what_it_is(end: str, fine: bool) -> None:
    """Neither answered nor failed with another error; it does not count as a question."""
    planted = poison(len(ASKED))
    disturbed = {**UNDISTURBED, planted.number: Answer(detail=end)}
    judged = compare([*ASKED, planted], UNDISTURBED, UNDISTURBED, disturbed)
    assert (judged.asked, not list(judged.complaints())) == (len(ASKED), fine)
    assert all(question.body["max_tokens"] != POISON_TOKENS for question in ASKED)


@pytest.mark.parametrize(("text", "fine"), [("", True), ("te", True), ("ex", False)])
def test_a_client_that_left_has_the_answers_beginning(text: str, fine: bool) -> None:
    """It is not lost: nobody waits for its end."""
    judged = compare(ASKED, UNDISTURBED, UNDISTURBED, UNDISTURBED, {GREEDY: Answer(text=text)})
    assert (judged.asked, judged.left, judged.lost) == (len(ASKED) - 1, 1, [])
    assert (list(judged.complaints()) == []) is fine


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"strikes": {"SIGKILL": 2}, "server": {"deaths": 1.0}}, "not every strike killed an engine"),
        ({"missed": ["no memory left"]}, "strikes of which no engine died: no memory left"),
        ({"held": {"leases": 1.0}}, "held without a request: {'leases': 1.0}"),
        ({"slow_steps": {"decode, hangs": 1}, "hung": 1}, "0 engines were killed as hung, and 1 hung"),
        ({"slow_steps": {"decode, hangs": 1}, "left": 2}, "2 clients left, and 0 requests ended"),
    ],
)
def test_a_run_that_shows_nothing_or_leaves_something_is_a_complaint(
    changed: dict[str, Any], words: str
) -> None:
    assert words in "; ".join(replace(found(), **changed).complaints())
