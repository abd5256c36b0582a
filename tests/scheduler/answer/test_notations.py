"""Reasoning and calls in every notation, for any cuts between tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.stop_strings import wanted_marks
from scheduler.events import FinishReason, ToolCallArguments, ToolCallStarted
from tests.examples import examples, some
from tests.scheduler.answer.notations import (
    HARMONY,
    MALFORMED,
    WRITTEN,
    Message,
    Written,
    fed,
    form,
    message_of,
    pipeline,
)
from tests.scheduler.answer.oracle import PARSERS

names = [written.name for written in WRITTEN]


def read(written: Written, chunks: list[bytes]) -> Message:
    message, reason = message_of(pipeline(written.form, in_reasoning=written.in_reasoning), chunks)
    assert reason is (FinishReason.TOOL_CALLS if written.calls else FinishReason.STOP)
    return message


def check(written: Written, message: Message) -> None:
    assert message.calls == written.calls
    assert message.text == written.text
    assert message.reasoning == written.reasoning


def test_every_parser_of_mlx_lm_has_a_transcript() -> None:
    """The test fails for a new one in a newer mlx-lm."""
    read_by = {written.form.tools.name for written in WRITTEN if written.form.tools}
    assert set(PARSERS) <= read_by


@pytest.mark.parametrize("written", WRITTEN, ids=names)
def test_byte_by_byte(written: Written) -> None:
    """The pieces join to the same message, arguments to the same text."""
    data = written.raw.encode()
    message = read(written, [data[i : i + 1] for i in range(len(data))])
    check(written, message)
    assert message == read(written, [data])


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_cutting_gives_the_same_message(data: st.DataObject) -> None:
    """In any number of pieces."""
    written = data.draw(st.sampled_from(WRITTEN))
    raw = written.raw.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)))))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    check(written, read(written, chunks))


@pytest.mark.parametrize(("parser", "raw"), MALFORMED)
def test_a_call_that_cannot_be_read_is_kept_with_the_raw_text(parser: str, raw: str) -> None:
    """Whatever mlx-lm's reader raises, or skips; however it is cut; and what comes after it is still read."""
    found = []
    for chunks in ([raw.encode()], [bytes([byte]) for byte in raw.encode()]):
        answer = pipeline(form(parser))
        message, reason = message_of(answer, chunks)
        (call,) = message.malformed
        assert call.text == raw
        assert answer.call_faults.total() == 1
        assert reason is (FinishReason.STOP if call.index is None else FinishReason.TOOL_CALLS)
        if call.index is not None:
            with pytest.raises(ValueError, match=r".+"):
                json.loads(message.arguments[0], parse_constant=strictly)
        found.append(message)
    assert found[0] == found[1]


def strictly(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def test_the_answer_goes_on_after_a_call_that_cannot_be_read() -> None:
    """Text and a good call; the bad one is not counted among those that can be run."""
    bad, good = "<tool_call>what?</tool_call>", '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    message, reason = message_of(pipeline(form("json_tools")), [f"a {bad} b\n{good}".encode()])
    assert (message.text, message.calls, reason) == ("a b", (("get_time", {}),), FinishReason.TOOL_CALLS)
    assert [call.text for call in message.malformed] == [f" {bad}"]


@pytest.mark.parametrize("tail", ["", "}}", "}\n}\n", "\n"])
def test_braces_after_whole_arguments_change_nothing(tail: str) -> None:
    """One too few or too many is what small models get wrong most; what they mean is complete."""
    raw = f'<tool_call>{{"name": "get_time", "arguments": {{"zone": "UTC"}}{tail}</tool_call>'
    message, reason = message_of(pipeline(form("json_tools")), [raw.encode()])
    assert (message.calls, message.malformed) == ((("get_time", {"zone": "UTC"}),), [])
    assert reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [
        ('{"zone": "UT', ""),
        ('{"zone": "\\d"}}', '\\d"}}'),
        ('{"zone": "UTC", bad}}', ", bad}}"),
        ('{"a": 1, bad}}', ", bad}}"),
        ('{"a": 1 2}}', "2}}"),
        ("{bad}}", "{bad}}"),
        ('{"a": [1, }}', "[1, }}"),
    ],
)
def test_what_was_not_sent_of_the_arguments_is_the_rest(arguments: str, rest: str) -> None:
    """The client gets the arguments as the model wrote them, and complains to it."""
    raw = f'<tool_call>{{"name": "get_time", "arguments": {arguments}</tool_call>'
    for chunks in ([raw.encode()], [bytes([byte]) for byte in raw.encode()]):
        message, _ = message_of(pipeline(form("json_tools")), chunks)
        (call,) = message.malformed
        assert call.rest.endswith(rest)
        # A mark in a string that has no end is part of it.
        assert message.arguments[0].replace(" ", "").startswith(arguments.replace(" ", ""))


def test_only_one_call_is_all_even_if_it_cannot_be_read() -> None:
    """parallel_tool_calls false: the client complains to the model about that one."""
    raw = b'<tool_call>{"name": "get_time", "arguments": {bad}}</tool_call>' + b"x" * 50
    answer = pipeline(form("json_tools"), parallel=False)
    message, reason = message_of(answer, [bytes([byte]) for byte in raw])
    assert (answer.stopped, reason, message.names) == (True, FinishReason.TOOL_CALLS, ["get_time"])


@pytest.mark.parametrize("written", WRITTEN, ids=names)
def test_cut_off_anywhere_by_the_limit_it_ends_with_length_and_no_error(written: Written) -> None:
    """Half a call is never text, and never a failure; whole ones before it stay."""
    data = written.raw.encode()
    marks = tuple(sorted(written.form.spelled(tools=True)))
    for end in some(range(len(data))):
        if wanted_marks(marks).beginning(data[:end].decode("utf-8", "ignore")):
            continue  # Half a mark may be text, and is passed on.
        answer = pipeline(written.form, in_reasoning=written.in_reasoning)
        message, reason = message_of(answer, [data[:end]], FinishReason.LENGTH)
        assert (reason, message.malformed) == (FinishReason.LENGTH, [])
        assert written.text.startswith(message.text.rstrip("\ufffd\n "))
        assert message.names == [name for name, _ in written.calls][: len(message.names)]


def test_the_name_comes_first_and_a_long_string_comes_while_it_is_written() -> None:
    """A file's content takes a model minutes; a client sees it grow."""
    answer = pipeline(form("json_tools"))
    started, *pieces = fed(answer, b'<tool_call>{"name": "get_time", "arguments": {"zone": "U')
    assert started == ToolCallStarted(0, "call_0", "get_time")
    assert "".join([piece.text for piece in pieces if isinstance(piece, ToolCallArguments)]) == '{"zone": "U'
    assert list(fed(answer, b"T")) == [ToolCallArguments(0, "T")]


def test_a_stop_string_inside_a_call_cuts_it_without_an_error() -> None:
    """The client requested the cut. Before the call, it is as usual."""
    raw = b'ok <tool_call>{"name": "get_time", "arguments": {"zone": "UTC"}}</tool_call>'
    message, reason = message_of(pipeline(form("json_tools"), stop=("UTC",)), [raw])
    assert (message.text, reason) == ("ok", FinishReason.STOP)
    message, reason = message_of(pipeline(form("json_tools"), stop=("</tool_call>",)), [raw])
    assert (message.calls, reason) == ((("get_time", {"zone": "UTC"}),), FinishReason.STOP)


def test_without_tools_nothing_is_taken_for_a_call() -> None:
    """A request without tools expects none: it is text."""
    raw = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    message, _ = message_of(pipeline(form("json_tools", "think"), tools=()), [raw.encode()])
    assert (message.text, message.names) == (raw, [])


def test_reasoning_tokens_are_counted() -> None:
    """Those that the model wrote between the marks, as the engine counts tokens."""
    answer = pipeline(form(None, "think"), in_reasoning=True)
    message_of(answer, [bytes([byte]) for byte in b"abc</think>def"])
    assert answer.reasoning_tokens == len(b"abc</think>")


def test_harmonys_analysis_is_reasoning_when_it_is_cut_off() -> None:
    """gpt-oss at its limit: no answer yet, and nothing lost."""
    raw = b"<|channel|>analysis<|message|>thinking about"
    message, reason = message_of(pipeline(HARMONY), [raw], FinishReason.LENGTH)
    assert (message.reasoning, reason) == ("thinking about", FinishReason.LENGTH)


@pytest.mark.parametrize("family", ["GLM 4.7", "Qwen 3 Coder", "Gemma 4", "MiniCPM 5"])
def test_a_whole_call_with_a_long_file_is_read(family: str) -> None:
    """The limit is for failing matches, not for long texts."""
    written = next(one for one in WRITTEN if one.name == family)
    assert written.form.tools is not None
    city = str(dict(written.calls[0][1])["city" if written.calls[0][0] == "get_weather" else "zone"])
    raw = written.raw.replace(city, "a line of a file, <p>and</p> more\n" * 6_000)
    message, reason = message_of(pipeline(written.form, in_reasoning=written.in_reasoning), [raw.encode()])
    assert reason is FinishReason.TOOL_CALLS
    assert len(str(message.calls)) > 200_000
