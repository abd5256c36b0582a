"""Calls of every notation that are not as a template writes them, whose beginning a client has already."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.events import FinishReason
from tests.examples import examples
from tests.scheduler.answer.notations import form, message_of, pipeline
from tests.scheduler.answer.templates import TEMPLATES
from tests.scheduler.answer.tool_calls.test_streamed_calls import EVERY, OTHER, name_in, tools_for

BOTH: dict[str, Any] = {"text": "/srv/data", "whole": 3}


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


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
    tools, first = tools_for(template), (name_in(template), BOTH)
    several = template.render([first, (name_in(template), {"text": "/srv/data"})])
    for raw in (several, template.render([first]).removesuffix(template.closing)):
        for chunks in ([raw.encode()], [bytes([byte]) for byte in raw.encode()]):
            answer = pipeline(form(template.parser), tools=tools, parallel=False)
            message, reason = message_of(answer, chunks, FinishReason.LENGTH)
            assert (message.malformed, message.calls) == ([], (first,))
            assert (answer.stopped, reason) == (True, FinishReason.TOOL_CALLS)


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


@EVERY
@settings(deadline=None, max_examples=examples(20))
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
