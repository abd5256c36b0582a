"""The comparison of answers finds every difference, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtests.chaos import report
from loadtests.chaos.answers import Answer
from loadtests.chaos.findings import Findings, compare
from loadtests.chaos.questions import Question, poison, questions
from loadtests.chaos.saboteur.sitecustomize import POISON_TOKENS

ASKED = questions(40, seed=3, with_json=True)
GREEDY = next(question.number for question in ASKED if question.greedy)
SAMPLED = [question.number for question in ASKED if not question.greedy]


def whole(number: int, **changed: Any) -> Answer:
    """Return a good answer to this question."""
    answer = Answer(f"text {number}", finish_reason="length", output_tokens=8, ended=True, status=200)
    return replace(answer, **changed)


UNDISTURBED = {question.number: whole(question.number) for question in ASKED}


def found(**changed: Any) -> Findings:
    """Return findings with the first greedy question's answer changed."""
    disturbed = {**UNDISTURBED, GREEDY: whole(GREEDY, **changed)}
    return compare(ASKED, UNDISTURBED, UNDISTURBED, disturbed)


def test_equal_answers_are_no_finding() -> None:
    """And the report says so."""
    assert list(found().complaints()) == []
    assert "delivered once, and equals the undisturbed one" in report.text(
        "Chaos", [], list(report.of_chaos(found()))
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ended": False, "finish_reason": None}, "lost"),
        ({"error": "engine_lost"}, "engine_lost"),
        ({"disorder": "an event after the end mark"}, "after the end mark"),
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


def test_an_answer_that_ends_with_an_error_is_a_failure() -> None:
    """Whatever was said before it; an answer that says another thing is one, too."""

    def complaints(**changed: Any) -> str:
        disturbed = {**UNDISTURBED, GREEDY: replace(UNDISTURBED[GREEDY], **changed)}
        return "; ".join(compare(ASKED, UNDISTURBED, UNDISTURBED, disturbed).complaints())

    assert complaints() == ""
    assert "greedy" in complaints(text="another")
    assert "engine_lost" in complaints(error="engine_lost")


def test_a_question_that_was_never_answered_is_lost() -> None:
    """Not only one that was cut off."""
    disturbed = {number: answer for number, answer in UNDISTURBED.items() if number != GREEDY}
    assert compare(ASKED, UNDISTURBED, {}, disturbed).lost == [GREEDY]


def test_a_sampled_answer_may_part_and_many_may_not() -> None:
    """One is within float32's limits; all of them are not. The control run is counted, not judged."""
    one = {**UNDISTURBED, SAMPLED[0]: whole(SAMPLED[0], text="another")}
    every = {**UNDISTURBED, **{number: whole(number, text="another") for number in SAMPLED}}
    assert list(compare(ASKED, UNDISTURBED, every, one).complaints()) == []
    assert compare(ASKED, UNDISTURBED, every, one).control_parted == SAMPLED
    (complaint,) = compare(ASKED, UNDISTURBED, UNDISTURBED, every).complaints()
    assert "too many sampled" in complaint


@pytest.mark.parametrize(
    ("end", "fine"), [("poisonous_request", True), ("engine_lost", False), (None, False)]
)
def test_the_poison_must_end_as_what_it_is(end: str | None, fine: bool) -> None:
    """Neither answered nor failed with another error; it does not count as a question."""
    planted = poison(len(ASKED))
    disturbed = {**UNDISTURBED, planted.number: whole(planted.number, error=end)}
    judged = compare([*ASKED, planted], UNDISTURBED, UNDISTURBED, disturbed)
    assert (judged.asked, not list(judged.complaints())) == (len(ASKED), fine)


def test_a_strike_that_killed_nobody_is_a_complaint() -> None:
    """Otherwise a run would pass in which no engine died."""
    struck = replace(found(), strikes={"SIGKILL": 2}, server={"deaths": 1.0})
    assert list(struck.complaints()) == ["not every strike killed an engine"]
    missed = replace(found(), strikes={"SIGHUP": 1}, server={"deaths": 1.0}, missed=["no memory left"])
    assert list(missed.complaints()) == ["strikes of which no engine died: no memory left"]


def test_questions_come_from_their_seed_and_are_of_all_kinds() -> None:
    """Equal seeds give equal questions; none is poison by accident."""
    again = questions(40, seed=3, with_json=True)
    assert [question.body for question in again] == [question.body for question in ASKED]
    assert questions(40, seed=4, with_json=True) != ASKED
    assert (
        {question.greedy for question in ASKED} == {question.streamed for question in ASKED} == {True, False}
    )
    for field in ("tools", "response_format", "stop", "seed", "presence_penalty"):
        assert any(field in question.body for question in ASKED), field
    assert not any("response_format" in one.body for one in questions(99, seed=3, with_json=False))
    assert all(question.body["max_tokens"] != POISON_TOKENS for question in ASKED)


def test_an_answer_is_put_together_from_its_events() -> None:
    """Text, reasoning, calls and usage; anything after the finish reason is out of order."""
    answer = Answer()
    call = {"function": {"name": "look_up", "arguments": '{"wo'}}
    for delta in ({"content": "a"}, {"reasoning_content": "b"}, {"content": "c"}, {"tool_calls": [call]}):
        answer.take({"choices": [{"delta": delta}]})
    answer.take({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": 'rd":1}'}}]}}]})
    answer.take({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    answer.take({"choices": [], "usage": {"completion_tokens": 7}})
    assert answer.outcome == ("ac", "b", ('look_up {"word":1}',), "tool_calls", 7, None)
    assert answer.disorder is None
    answer.take({"choices": [{"delta": {"content": "again"}}]})
    assert answer.disorder is not None


def test_an_error_event_is_the_answers_error() -> None:
    """By its code."""
    answer = Answer()
    answer.take({"error": {"code": "engine_lost", "message": "gone"}})
    assert answer.error == "engine_lost"


def test_questions_are_greedy_exactly_where_the_temperature_is_0() -> None:
    """Only exact answers are compared strictly."""
    for question in ASKED:
        assert question.greedy == (question.body["temperature"] == 0)
    assert isinstance(poison(1), Question)
