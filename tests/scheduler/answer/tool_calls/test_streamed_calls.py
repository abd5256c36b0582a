"""Arguments in every notation leave while they are written, and what is read back is what was written; a call
that is cut off or alone ends where it is."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.text_stream import HEAVY
from scheduler.events import FinishReason
from scheduler.request import Tool
from tests.examples import examples
from tests.scheduler.answer.notations import Message, fed, form, message_of, pipeline
from tests.scheduler.answer.templates import TEMPLATES, Call, Template

EVERY = pytest.mark.parametrize("name", TEMPLATES)
FRAGMENTS = (
    *("a", "é", "🦊", *" \n\t\\\"'<>&{}[],:()=", "\\n", "&amp;", "null", "None", "7", "'''", '"""'),
    *("</", "<parameter=x>", "</parameter", "<arg_value>", "</arg_value", "</invoke>", "<![CDATA[", "]]"),
    *("<|", '<|"', "<esc", "</function>", "</｜DSML｜"),
)
"""What texts are made of here: above all beginnings and pieces of marks, also of other notations."""
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)


def is_no_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


CHOICES = ["1", "01", "true", "null", "fast mode"]
VALUES: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "text": ({"type": "string"}, texts),
    "maybe": (
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        st.none() | texts.filter(is_no_json),
    ),
    "number_or_text": ({"type": ["integer", "string"]}, st.integers(-9, 99) | texts.filter(is_no_json)),
    "fixed": ({"const": " as it is"}, st.just(" as it is")),
    "choice": ({"type": "string", "enum": CHOICES}, st.sampled_from(CHOICES)),
    "untyped_choice": ({"enum": CHOICES}, st.sampled_from(CHOICES)),
    "whole": ({"type": "integer"}, st.integers(-(2**60), 2**60)),
    "real": ({"type": "number"}, st.integers(-1000, 1000).map(lambda n: n / 8)),
    "flag": ({"type": "boolean"}, st.booleans()),
    "referred": ({"$ref": "#/$defs/line"}, texts),
    "list": ({"type": "array", "items": {"type": "string"}}, st.lists(texts, max_size=3)),
    "object": (
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
        st.fixed_dictionaries({"a": texts, "b": st.integers(0, 9)}),
    ),
}
TOOL = Tool(
    "edit-file",
    "",
    {
        "type": "object",
        "properties": {key: schema for key, (schema, _) in VALUES.items()},
        "$defs": {"line": {"type": "string"}},
    },
)
OTHER = Tool("now", "", {"type": "object", "properties": {}})
TOOLS = (TOOL, OTHER)


def name_in(template: Template) -> str:
    """Python's and FunctionGemma's names have no hyphen."""
    return TOOL.name.replace("-", "_") if template.parser in ("pythonic", "function_gemma") else TOOL.name


def tools_for(template: Template) -> tuple[Tool, ...]:
    return (Tool(name_in(template), "", TOOL.parameters), OTHER)


def carries(template: Template, value: Any) -> bool:
    """Whether the notation can carry a value at all: no text in it contains an end."""
    if isinstance(value, str):
        return not any(end in value or _meets(value, end) for end in template.ends)
    if isinstance(value, list):
        return all(carries(template, each) for each in value)
    return not isinstance(value, dict) or carries(template, list(value.values()))


def _meets(value: str, end: str) -> bool:
    """Whether an end would begin in the text: its last characters and the mark behind it make one earlier."""
    return (value + end).index(end) < len(value)


@st.composite
def calls(draw: st.DrawFn, template: Template) -> list[Call]:
    keys = draw(st.lists(st.sampled_from(list(VALUES)), unique=True, max_size=5))
    arguments = {}
    for key in keys:
        arguments[key] = draw(VALUES[key][1].filter(lambda value: carries(template, value)))
    made: list[Call] = [(name_in(template), arguments)]
    if draw(st.booleans()):
        made.append((OTHER.name, {}))
    return made


def read(template: Template, raw: str, cuts: list[int]) -> Message:
    data = raw.encode()
    bounds = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    chunks = [data[start:end] for start, end in pairwise(bounds)]
    message, reason = message_of(pipeline(form(template.parser), tools=tools_for(template)), chunks)
    assert reason is FinishReason.TOOL_CALLS
    return message


@EVERY
@settings(deadline=None, max_examples=examples(12))
@given(data=st.data())
def test_any_arguments_in_any_pieces_are_themselves(name: str, data: st.DataObject) -> None:
    """Character for character: line breaks, white space at both ends, quotes, other notations' marks."""
    template = TEMPLATES[name]
    made = data.draw(calls(template))
    raw = template.render(made)
    message = read(template, raw, data.draw(st.lists(st.integers(0), max_size=20)))
    assert (message.malformed, message.text, message.reasoning) == ([], "", "")
    assert message.calls == tuple(made)
    assert message == read(template, raw, [])


LONG = "if a < b:\n    return 'no'\n" * 40
HELD_BACK = 60
"""More characters than the longest mark that may begin, its escapes included."""


@EVERY
@pytest.mark.parametrize("key", ["text", "maybe"])
def test_a_long_text_leaves_while_it_is_written(key: str, name: str) -> None:
    """The name when it is certain, and each character when it can be no mark any more."""
    template = TEMPLATES[name]
    raw = template.render([(name_in(template), {key: LONG})])
    answer = pipeline(form(template.parser), tools=tools_for(template))
    message = Message()
    sent = []
    for character in raw:
        for piece in fed(answer, character.encode()):
            assert piece is not HEAVY, "its schema is small, and so is each token's work"
            message.add(piece)
        sent.append(len(message.arguments[0]) if message.arguments else 0)
    begun = raw.index("if a")
    ended = raw.rindex("'no'")
    assert message.names == [name_in(template)]
    assert sent[begun - 1] <= len(f'{{"{key}": "')
    for position in range(begun, ended):
        written = json.dumps(raw[begun:position])
        # A text in JSON or Python has its escapes already.
        assert sent[position] >= len(written if "\n" in raw[begun:ended] else raw[begun:position]) - HELD_BACK
    assert sent[-1] <= sent[ended] + HELD_BACK


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
    """parallel_tool_calls false, also where one pair of marks has several calls: the row ends with the first,
    and not with the mark behind the others, which would be generated for nothing."""
    template = TEMPLATES[name]
    tools, first = tools_for(template), (name_in(template), {"text": "/srv/data", "whole": 3})
    several = template.render([first, (name_in(template), {"text": "/srv/data"})])
    for raw in (several, template.render([first]).removesuffix(template.closing)):
        for chunks in ([raw.encode()], [bytes([byte]) for byte in raw.encode()]):
            answer = pipeline(form(template.parser), tools=tools, parallel=False)
            message, reason = message_of(answer, chunks, FinishReason.LENGTH)
            assert (message.malformed, message.calls) == ([], (first,))
            assert (answer.stopped, reason) == (True, FinishReason.TOOL_CALLS)
