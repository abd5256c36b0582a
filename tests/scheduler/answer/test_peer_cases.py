"""The table of what models write, read whole and in pieces; what is no call stays as it is; a cut is no
fault; and the work for a text grows as the text does."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.notations.catalog import NOTATIONS
from scheduler.answer.stop_strings import wanted_marks
from scheduler.events import FinishReason
from tests.examples import examples, some
from tests.scheduler.answer.notations import WRITTEN, Message, Written, form, message_of, pipeline
from tests.scheduler.answer.oracle import PARSERS
from tests.scheduler.answer.peer_cases import CASES, FORMS, TOOLS

EVERY = pytest.mark.parametrize("case", [*WRITTEN, *CASES], ids=str)


def read(case: Written, cuts: list[int]) -> Message:
    data = case.raw.encode()
    bounds = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    answer = pipeline(case.form, in_reasoning=case.in_reasoning, tools=case.tools)
    message, reason = message_of(answer, [data[start:end] for start, end in pairwise(bounds)])
    assert reason is (FinishReason.TOOL_CALLS if message.names else FinishReason.STOP)
    assert answer.call_faults.total() == len(message.malformed)
    return message


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_every_parser_of_mlx_lm_has_a_transcript() -> None:
    """The test fails for a new one in a newer mlx-lm."""
    assert set(PARSERS) <= {written.form.tools.name for written in WRITTEN if written.form.tools}


@EVERY
def test_the_client_gets_what_the_model_means(case: Written) -> None:
    """Text, thoughts and calls; a call that cannot be read is no call, its words are kept, and its arguments
    are no JSON."""
    message = read(case, [])
    written = list(zip(message.names, message.arguments, strict=True))
    broken = {call.index for call in message.malformed if call.index is not None}
    assert not any(is_json(written[index][1]) for index in broken)
    calls = [(name, json.loads(text)) for at, (name, text) in enumerate(written) if at not in broken]
    assert tuple(calls) == case.calls
    assert (message.text, message.reasoning) == (case.text, case.reasoning)
    assert len(message.malformed) == case.malformed
    assert all(call.text.strip() and call.text.strip() in case.raw for call in message.malformed)
    assert len(set(message.ids)) == len(message.ids)
    assert message == read(case, list(range(len(case.raw.encode()))))


@pytest.mark.parametrize("case", WRITTEN, ids=str)
def test_cut_off_anywhere_by_the_limit_it_ends_with_length_and_no_error(case: Written) -> None:
    """Half a call is never text, and never a failure; whole ones before it stay."""
    data, marks = case.raw.encode(), tuple(sorted(case.form.spelled(tools=True)))
    for end in some(range(len(data))):
        if wanted_marks(marks).beginning(data[:end].decode("utf-8", "ignore")):
            continue  # Half a mark may be text, and is passed on.
        answer = pipeline(case.form, in_reasoning=case.in_reasoning)
        message, reason = message_of(answer, [data[:end]], FinishReason.LENGTH)
        assert (reason, message.malformed) == (FinishReason.LENGTH, [])
        assert case.text.startswith(message.text.rstrip("\ufffd\n "))
        assert message.names == [name for name, _ in case.calls][: len(message.names)]


def test_a_stop_string_inside_a_call_cuts_it_without_an_error() -> None:
    """The client requested the cut. Before the call, it is as usual."""
    raw = b'ok <tool_call>{"name": "get_time", "arguments": {"zone": "UTC"}}</tool_call>'
    message, reason = message_of(pipeline(form("json_tools"), stop=("UTC",)), [raw])
    assert (message.text, message.malformed, reason) == ("ok", [], FinishReason.STOP)
    message, reason = message_of(pipeline(form("json_tools"), stop=("</tool_call>",)), [raw])
    assert (message.calls, reason) == ((("get_time", {"zone": "UTC"}),), FinishReason.STOP)


def test_without_tools_nothing_is_taken_for_a_call() -> None:
    """A request without tools expects none: it is text."""
    raw = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    message, _ = message_of(pipeline(form("json_tools", "think"), tools=()), [raw.encode()])
    assert (message.text, message.names) == (raw, [])


_WORDS = (*"a {}[]()\"',:<>`\n", "now", "</", "get_weather ")


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), case=st.sampled_from(CASES), cuts=st.lists(st.integers(0), max_size=12))
def test_pieces_change_nothing(data: st.DataObject, case: Written, cuts: list[int]) -> None:
    """In any number, cut anywhere, also of what no model means: marks and words amid a case, or in place of a
    part of it. A call is malformed where its arguments are no JSON, and only there."""
    notation = case.form.notation
    assert notation is not None
    marks = [mark for one in (notation, *notation.also) for mark in one.control if "{" not in mark]
    amid = "".join(data.draw(st.lists(st.sampled_from([*marks, *_WORDS]), max_size=4)))
    start = data.draw(st.integers(0, len(case.raw)))
    end = data.draw(st.just(start) | st.integers(start, len(case.raw)))
    spoiled = replace(case, raw=case.raw[:start] + amid + case.raw[end:])
    message = read(spoiled, cuts)
    assert message == read(spoiled, [])
    malformed = {call.index for call in message.malformed}
    for index, arguments in enumerate(message.arguments):
        assert is_json(arguments) is (index not in malformed), arguments


FAMILIES = st.sampled_from([family for family in FORMS if family not in ("gpt-oss", "Kimi K3")])


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_text_that_is_no_call_stays_as_it_is(data: st.DataObject) -> None:
    """Also where it talks of marks of other families, and of heads without an offered name."""
    family = data.draw(FAMILIES)
    notation = FORMS[family].tools
    assert notation is not None
    own = {mark for one in (notation, *notation.also) for mark in one.control}
    others = {mark for other in FORMS.values() if other.tools for mark in other.tools.control}
    talk = [*_WORDS, *(f"{one.prefix}x" for one in (notation, *notation.also)), *sorted(others - own)]
    text = "x" + "".join(data.draw(st.lists(st.sampled_from(talk), max_size=12))) + "x"
    if any(mark in text for mark in own):
        return
    message, _ = message_of(pipeline(FORMS[family], tools=TOOLS), [text.encode()])
    if not message.names:
        assert message.text + "".join(call.text for call in message.malformed) == text


def steps(notation: str, text: str) -> int:
    """How many lines of Python run for it."""
    count = 0

    def trace(_frame: object, _event: str, _value: object) -> Any:
        nonlocal count
        count += 1
        return trace

    answer = pipeline(form(notation), tools=TOOLS)
    data = text.encode()
    chunks = [data[at : at + 64] for at in range(0, len(data), 64)]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        message_of(answer, chunks)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("notation", NOTATIONS)
def test_twice_the_text_is_twice_the_work(notation: str) -> None:
    """Marks in runs and in turns, heads of calls that never end."""
    described = form(notation).tools
    assert described is not None
    marks = [mark for one in (described, *described.also) for mark in (*one.control, one.prefix)]
    marks = [mark for mark in marks if mark and "{" not in mark]
    heads = [
        one.call_start + one.head.replace("{tool}", "write_file") for one in (described, *described.also)
    ]
    units = [
        *marks,
        *heads,
        "".join(marks),
        "".join(heads),
        *(head + mark for head in heads for mark in marks),
    ]
    for unit in some(units):
        unit += '"' if len(unit) % 2 else " "
        small, large = (steps(notation, unit * (size // len(unit) + 1)) for size in (1_200, 4_800))
        assert large < 6 * small + 10_000, unit  # What is read again, sixteen times, is a fixed part.
