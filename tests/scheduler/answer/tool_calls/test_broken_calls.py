"""Calls of every notation that are not as a template writes them, whose beginning a client has already."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.answer_format import tool_syntax
from scheduler.events import FinishReason
from tests.examples import examples
from tests.scheduler.answer.notations import Message, fed, form, message_of, pipeline
from tests.scheduler.answer.templates import TEMPLATES
from tests.scheduler.answer.tool_calls.test_streamed_calls import EVERY, OTHER, name_in, tools_for

PATH: dict[str, Any] = {"text": "/srv/data"}
BOTH: dict[str, Any] = {"text": "/srv/data", "whole": 3}


def read(parser: str, raw: str, name: str = "", **options: Any) -> Message:
    """In one piece and byte by byte, which must be the same."""
    tools = tools_for(TEMPLATES[name or parser])
    found = []
    for chunks in ([raw.encode()], [bytes([byte]) for byte in raw.encode()]):
        message, _ = message_of(pipeline(form(parser), tools=tools, **options), chunks)
        found.append(message)
    assert found[0] == found[1]
    return found[0]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


BROKEN = {
    # The end tag of another part (sglang#27336).
    "wrong-end": (
        "qwen3_coder",
        "<tool_call>\n<function=edit-file>\n<parameter=text>\na\n</parameter>\n</parameter>\n</tool_call>",
    ),
    # A parameter without an end: mlx-lm's parser drops it, and the call would run without its path.
    "no-end": ("qwen3_coder", "<tool_call><function=edit-file><parameter=text>\na\n</function></tool_call>"),
    "no-end-of-glm": ("glm47", "<tool_call>edit-file<arg_key>text</arg_key><arg_value>a</tool_call>"),
    "no-value": (
        "glm47",
        "<tool_call>edit-file<arg_key>text</arg_key><arg_value>a</arg_value><arg_key>whole</tool_call>",
    ),
    "words-between": (
        "glm47",
        "<tool_call>edit-file<arg_key>text</arg_key><arg_value>/srv/data</arg_value>and</tool_call>",
    ),
    "no-brace": ("gemma4", '<|tool_call>call:edit-file{text:<|"|>a<|"|>,whole:[1<tool_call|>'),
    "no-string-end": (
        "function_gemma",
        "<start_function_call>call:edit_file{text:<escape>a}<end_function_call>",
    ),
    "no-quote": ("pythonic", '<|tool_call_start|>[edit_file(text="a<|tool_call_end|>'),
    "no-bracket": ("pythonic", '<|tool_call_start|>[edit_file(text="a", whole=3<|tool_call_end|>'),
    "kimi": (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit-file:0<|tool_call_argument_begin|>"
        '{"text": "a" "b"}<|tool_call_end|><|tool_calls_section_end|>',
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_call_that_breaks_after_its_name_is_malformed(case: str) -> None:
    """Never half of its arguments as if they were all, and its arguments are no JSON."""
    parser, raw = BROKEN[case]
    message = read(parser, raw)
    (call,) = message.malformed
    assert raw.endswith(call.text)
    assert call.text.count("edit") == 1
    assert call.index == len(message.names) - 1
    assert [is_json(arguments) for arguments in message.arguments] == [True] * call.index + [False]
    assert message.text == ""


@EVERY
def test_a_call_that_is_cut_off_ends_where_it_is(name: str) -> None:
    """max_tokens in the middle of an argument: what was sent stays the beginning of an object, as in JSON."""
    template = TEMPLATES[name]
    raw = template.render([(name_in(template), {"text": "/srv\n/data"})])
    cut = raw[: raw.index("data")]
    answer = pipeline(form(template.parser), tools=tools_for(template))
    message, reason = message_of(answer, [cut.encode()], FinishReason.LENGTH)
    assert (reason, message.malformed, message.text) == (FinishReason.LENGTH, [], "")
    assert message.arguments == ['{"text": "/srv\\n/']


@EVERY
def test_one_call_is_all_where_the_client_wants_no_more(name: str) -> None:
    """parallel_tool_calls false, also where one pair of marks has several calls."""
    template = TEMPLATES[name]
    raw = template.render([(name_in(template), BOTH), (name_in(template), PATH)])
    message = read(template.parser, raw, name, parallel=False)
    assert (message.malformed, message.calls) == ([], ((name_in(template), BOTH),))


SEVERAL = [name for name, template in TEMPLATES.items() if template.opening]


@pytest.mark.parametrize("name", SEVERAL)
def test_the_row_ends_with_that_call(name: str) -> None:
    """Not with the mark behind the others, which would be generated for nothing."""
    template = TEMPLATES[name]
    raw = template.render([(name_in(template), BOTH)]).removesuffix(template.closing)
    answer = pipeline(form(template.parser), tools=tools_for(template), parallel=False)
    message, reason = message_of(answer, [raw.encode()], FinishReason.LENGTH)
    assert (answer.stopped, reason) == (True, FinishReason.TOOL_CALLS)
    assert (message.malformed, message.calls) == ([], ((name_in(template), BOTH),))


@pytest.mark.parametrize("name", SEVERAL)
def test_whole_calls_stay_whole_before_one_that_is_broken(name: str) -> None:
    """Only the broken one is text, and only it is malformed."""
    template = TEMPLATES[name]
    raw = template.render([(name_in(template), BOTH), (name_in(template), BOTH)])
    broken = raw[: raw.rindex("data")] + tool_syntax(template.parser).end
    message = read(template.parser, broken, name)
    assert json.loads(message.arguments[0]) == BOTH
    assert not is_json(message.arguments[1])
    (call,) = message.malformed
    assert call.index == 1
    assert broken.endswith(call.text)
    assert call.text.count("/srv/") == 1


REASONED = [name for name, template in TEMPLATES.items() if template.parser != "kimi_k3"]


@pytest.mark.parametrize("name", REASONED)
def test_a_call_in_reasoning_is_one_if_it_is_whole(name: str) -> None:
    """Nothing of it leaves before: it may be words about a call."""
    template = TEMPLATES[name]
    raw = template.render([(name_in(template), {"text": " as it is\n"})])
    tools = tools_for(template)
    answer = pipeline(form(template.parser, "think"), in_reasoning=True, tools=tools)
    message, reason = message_of(answer, [f"so {raw}".encode()])
    assert (reason, message.reasoning) == (FinishReason.TOOL_CALLS, "so")
    assert message.calls == ((name_in(template), {"text": " as it is\n"}),)
    words = f"so {raw[: len(raw) - 30]}</think>no"
    message, _ = message_of(
        pipeline(form(template.parser, "think"), in_reasoning=True, tools=tools), [words.encode()]
    )
    assert (message.names, message.malformed, message.text) == ([], [], "no")
    assert message.reasoning == words.removesuffix("</think>no").rstrip()


def test_a_parameter_that_is_written_twice_is_the_second_one() -> None:
    """In JSON, too, the last of two members counts; mlx-lm's parser agrees."""
    raw = (
        "<tool_call><function=edit-file><parameter=text>\na\n</parameter><parameter=text>\n/srv/data\n"
        "</parameter></function></tool_call>"
    )
    assert read("qwen3_coder", raw).calls == (("edit-file", PATH),)


def test_the_arguments_of_an_unknown_tool_wait_for_each_value_only() -> None:
    """No schema says what they are; the client complains to the model."""
    raw = (
        "<tool_call>say<arg_key>a</arg_key><arg_value>1</arg_value>"
        "<arg_key>b</arg_key><arg_value>x y</arg_value>"
    )
    answer = pipeline(form("glm47"))
    message = Message()
    for piece in fed(answer, raw.encode()):
        message.add(piece)
    assert (message.names, message.arguments) == (["say"], ['{"a": 1, "b": "x y'])


@EVERY
@settings(deadline=None, derandomize=True, max_examples=examples(20))
@given(data=st.data())
def test_any_damage_is_a_call_or_a_malformed_one(name: str, data: st.DataObject) -> None:
    """Pieces dropped, repeated and swapped. A call that is not malformed has a JSON object, a malformed one
    has none, and no cut between tokens changes that."""
    template = TEMPLATES[name]
    calls = [(name_in(template), {**BOTH, "choice": "01"}), (OTHER.name, {}), (name_in(template), BOTH)]
    raw = template.render(calls)
    spots = st.integers(0, len(raw))
    for _ in range(data.draw(st.integers(1, 3))):
        start, end, to = sorted((data.draw(spots), data.draw(spots), data.draw(spots)))
        raw = data.draw(st.sampled_from([raw[:start] + raw[end:], raw[:to] + raw[start:end] + raw[to:]]))
    pieces = raw.encode()
    cuts = data.draw(st.lists(st.integers(0, len(pieces)), max_size=10))
    bounds = [0, *sorted(min(cut, len(pieces)) for cut in cuts), len(pieces)]
    tools = tools_for(template)
    message, _ = message_of(
        pipeline(form(template.parser), tools=tools), [pieces[a:b] for a, b in pairwise(bounds)]
    )
    malformed = {call.index for call in message.malformed}
    for index, arguments in enumerate(message.arguments):
        assert is_json(arguments) is (index not in malformed), arguments
    whole, _ = message_of(pipeline(form(template.parser), tools=tools), [pieces])
    assert message == whole
