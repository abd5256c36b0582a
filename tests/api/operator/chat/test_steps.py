"""What each entered line does to the conversation, and what a request of it holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.operator.answer import Call, Reply
from api.operator.chat.commands import COMMANDS, Completion, completions, help_text
from api.operator.chat.conversation import NOT_RUN, SETTINGS, Conversation, Turn, read_tools
from api.operator.chat.steps import Effect, Step, step

START = Conversation("tiny")
SPOKEN = replace(START, turns=(Turn("hello", Reply("hi", thinking="hm")),))
MODELS = ("tiny", "large")


def after(*lines: str, start: Conversation = START) -> Conversation:
    for line in lines:
        start = step(line, start, MODELS).conversation
    return start


def test_a_line_is_a_question() -> None:
    done = step("what is\nthis? ", SPOKEN, MODELS)
    assert done == Step(replace(SPOKEN, turns=(*SPOKEN.turns, Turn("what is\nthis?"))), Effect.ASK)


@pytest.mark.parametrize("line", ["", "  ", "\n"])
def test_an_empty_line_is_nothing(line: str) -> None:
    assert step(line, SPOKEN, MODELS) == Step(SPOKEN)


def test_a_space_in_front_sends_a_slash() -> None:
    assert after(" /etc/hosts is what?").turns == (Turn("/etc/hosts is what?"),)


def test_the_body_has_everything_that_was_said_and_set() -> None:
    body = after(
        "/system Be brief.", "/set temperature 0.2", "/set max_tokens=64", "and?", start=SPOKEN
    ).body()
    assert body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": "and?"},
        ],
        "temperature": 0.2,
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_tools_are_offered() -> None:
    conversation = replace(SPOKEN, tools=read_tools(json.dumps([TOOL])))
    assert conversation.asked("?").body()["tools"] == [TOOL]
    assert "tools" not in SPOKEN.asked("?").body()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"function": {}}]', '[{"function": {"name": 1}}]', "[" * 99_999]
)
def test_what_is_no_list_of_tools_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no JSON list of tools"):
        read_tools(text)


def test_each_call_has_a_result() -> None:
    """Templates refuse one without."""
    turn = Turn("look", Reply("", calls=(Call("c1", "look", "{}"), Call("", "see", "{}"))))
    messages = replace(START, turns=(turn,)).messages()
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c1", "call_1"]
    assert messages[1]["content"] is None
    results = [{"role": "tool", "tool_call_id": one, "content": NOT_RUN} for one in ("c1", "call_1")]
    assert messages[2:] == results


def test_a_question_without_answer_is_replaced_by_the_next() -> None:
    """Two questions in a row are refused by many templates."""
    assert after("one", "two", start=SPOKEN).turns == (*SPOKEN.turns, Turn("two"))


def test_retry_asks_the_last_question_again() -> None:
    done = step("/retry", SPOKEN, MODELS)
    assert (done.conversation.turns, done.effect) == ((Turn("hello"),), Effect.ASK)
    assert step("/retry", after("one"), MODELS).conversation.turns == (Turn("one"),)
    assert step("/retry", START, MODELS).is_mistake


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/system You are a cat.", replace(SPOKEN, system="You are a cat.")),
        ("/model large", replace(SPOKEN, model="large")),
        ("/clear", START),
        ("/set top_k 5", replace(SPOKEN, settings={"top_k": 5})),
        ("/set reasoning_effort low", replace(SPOKEN, settings={"reasoning_effort": "low"})),
    ],
)
def test_a_command_changes_the_conversation(line: str, expected: Conversation) -> None:
    done = step(line, SPOKEN, MODELS)
    assert done.conversation == expected
    assert done.effect is Effect.NOTHING
    assert done.said
    assert not done.is_mistake


def test_what_was_set_can_be_unset() -> None:
    assert after("/system x", "/system", "/set seed 1", "/set seed default") == START


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/sytem x", "no command /sytem: did you mean /system?"),
        ("/usr/bin is what?", "a space in front sends the line as it is"),
        ("/clear all", "takes nothing"),
        ("/save", "/save needs FILE"),
        ("/quit!", "no command /quit!"),
        ("/model huge", "no model 'huge'; it has tiny, large"),
        ("/set heat 1", "no parameter 'heat'; known: temperature"),
        ("/set temperature hot", "temperature must be a number, not 'hot'"),
        ("/set temperature 3", "temperature must be at least 0 and at most 2, not '3'"),
        ("/set temperature nan", "must be at least 0"),
        ("/set max_tokens 1.5", "must be an integer"),
        ("/set max_tokens 0", "must be at least 1, not '0'"),
    ],
)
def test_a_mistake_changes_nothing_and_says_what_is_right(line: str, says: str) -> None:
    done = step(line, SPOKEN, MODELS)
    assert done.is_mistake
    assert says in done.said
    assert (done.conversation, done.effect) == (SPOKEN, Effect.NOTHING)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/model", "* tiny\n  large"),
        ("/set", "nothing is set; known: temperature"),
        ("/set seed", "seed the model's own"),
        ("/help", "/save FILE"),
    ],
)
def test_a_command_without_value_shows_it(line: str, says: str) -> None:
    assert says in step(line, SPOKEN, MODELS).said


@pytest.mark.parametrize(
    ("line", "effect", "path", "overwrite"),
    [
        ("/save a b.md", Effect.SAVE, "a b.md", False),
        ("/save! x.json", Effect.SAVE, "x.json", True),
        ("/load x.json", Effect.LOAD, "x.json", False),
        ("/thinking", Effect.SHOW_THINKING, "", False),
        ("/quit", Effect.QUIT, "", False),
    ],
)
def test_what_needs_the_shell_is_left_to_it(line: str, effect: Effect, path: str, overwrite: bool) -> None:
    assert step(line, SPOKEN, MODELS) == Step(SPOKEN, effect, path=path, overwrite=overwrite)


def test_there_may_be_no_thinking() -> None:
    assert step("/thinking", START, MODELS) == Step(START, said="the last answer had no thinking")


@given(st.text(max_size=40))
def test_no_line_breaks_anything(line: str) -> None:
    for text in (line, f"/{line}", f"/set {line}", f"/model {line}"):
        assert isinstance(step(text, SPOKEN, MODELS), Step)
        completions(text, MODELS)


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("/s", [Completion("/system", -2), Completion("/set", -2), Completion("/save", -2)]),
        ("/model la", [Completion("large", -2)]),
        ("/model ", [Completion("tiny", 0), Completion("large", 0)]),
        ("/set temp", [Completion("temperature", -4)]),
        ("/set temperature ", []),
        ("hello /s", []),
        ("/clear ", []),
    ],
)
def test_commands_models_and_parameters_are_completed(before: str, found: list[Completion]) -> None:
    assert completions(before, MODELS) == found


def test_help_fits_eighty_columns_and_names_all() -> None:
    lines = help_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(f"/{name}" in help_text() for name in COMMANDS)


def test_the_parameters_are_fields_of_the_servers_own_body() -> None:
    from api.openai.schema import ChatCompletionRequest

    assert set(SETTINGS) <= set(ChatCompletionRequest.model_fields)
