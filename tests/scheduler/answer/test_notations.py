"""Reasoning and calls in every notation, for any cuts between tokens."""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FunctionType
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.answer_format import tool_syntax
from scheduler.answer.bounded_regex import limit_module, time_limit
from scheduler.answer.mlx_lm_parts import tool_parser_names
from scheduler.answer.stop_strings import possible_beginning
from scheduler.answer.tool_calls import reading
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.answer.tool_calls.reading import AnswerCalls, UnreadableCall, read_block
from scheduler.events import FinishReason, ToolCallArguments, ToolCallStarted
from tests.examples import examples, sampled, some
from tests.scheduler.answer.adversarial import MARKS, texts
from tests.scheduler.answer.notations import (
    HARMONY,
    MALFORMED,
    TOOLS,
    WRITTEN,
    Message,
    Written,
    form,
    message_of,
    pipeline,
)

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
    assert set(tool_parser_names()) <= read_by


@pytest.mark.parametrize("written", WRITTEN, ids=names)
def test_whole(written: Written) -> None:
    """All in one piece."""
    check(written, read(written, [written.raw.encode()]))


@pytest.mark.parametrize("written", WRITTEN, ids=names)
def test_byte_by_byte(written: Written) -> None:
    """The pieces join to the same message, arguments to the same text."""
    data = written.raw.encode()
    message = read(written, [data[i : i + 1] for i in range(len(data))])
    check(written, message)
    assert message == read(written, [data])


@pytest.mark.parametrize("written", WRITTEN, ids=names)
def test_cut_at_every_byte(written: Written) -> None:
    """Two pieces, wherever the cut is."""
    data = written.raw.encode()
    whole = read(written, [data])
    for cut in some(range(1, len(data))):
        assert read(written, [data[:cut], data[cut:]]) == whole, data[:cut]


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
        assert answer.malformed_calls == 1
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
        assert message.arguments[0].replace(" ", "") == arguments.replace(" ", "")


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
    marks = sorted(written.form.spelled(tools=True))
    for end in some(range(len(data))):
        if possible_beginning(data[:end].decode("utf-8", "ignore"), marks):
            continue  # Half a mark may be text, and is passed on.
        answer = pipeline(written.form, in_reasoning=written.in_reasoning)
        message, reason = message_of(answer, [data[:end]], FinishReason.LENGTH)
        assert reason is FinishReason.LENGTH
        assert written.text.startswith(message.text.rstrip("\ufffd\n "))
        assert message.names == [name for name, _ in written.calls][: len(message.names)]


def test_the_name_comes_first_and_a_long_string_comes_while_it_is_written() -> None:
    """A file's content takes a model minutes; a client sees it grow."""
    answer = pipeline(form("json_tools"))
    pieces = list(answer.feed(b'<tool_call>{"name": "get_time", "arguments": {"zone": "U'))
    assert pieces[:2] == [ToolCallStarted(0, "call_0", "get_time"), ToolCallArguments(0, '{"zone": "U')]
    assert list(answer.feed(b"T")) == [ToolCallArguments(0, "T")]


def test_one_call_is_all_where_the_client_wants_no_more() -> None:
    """parallel_tool_calls false ends the row after the first."""
    raw = next(written for written in WRITTEN if written.name == "json_tools").raw.encode()
    answer = pipeline(form("json_tools", "think"), parallel=False)
    message, reason = message_of(answer, [raw])
    assert (answer.stopped, reason, message.names) == (True, FinishReason.TOOL_CALLS, ["get_weather"])


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


@contextmanager
def within_a_second(text: str) -> Iterator[None]:
    """The collector waits: a whole test process's garbage is not the reader's."""
    gc.disable()
    started = time.process_time()
    try:
        yield
        assert time.process_time() - started < 1.0, text[:80]
    finally:
        gc.enable()


@pytest.mark.parametrize("parser", sampled(MARKS, ("kimi_k3", "json_tools", "qwen3_coder")))
def test_no_text_takes_a_reader_long(parser: str) -> None:
    """Parsing runs on the event loop. Without a limit several take seconds for some of these."""
    for raw in some(texts(parser, 20_000)):
        with within_a_second(raw), suppress(UnreadableCall):
            read_block(raw, tool_syntax(parser), AnswerCalls(OfferedTools(TOOLS), str, parallel=True))


@pytest.mark.parametrize("parser", sampled(MARKS, ("pythonic", "json_tools", "qwen3_coder")))
def test_no_text_takes_an_answer_long(parser: str) -> None:
    """The same where the text is read while it is written, and by the parser at its end."""
    syntax = tool_syntax(parser)
    for raw in some(texts(parser, 20_000)):
        data = f"{syntax.start}{raw}{syntax.end}".encode()
        with within_a_second(raw):
            message_of(pipeline(form(parser)), [data[at : at + 64] for at in range(0, len(data), 64)])


def test_the_table_of_texts_names_every_parser() -> None:
    """The test fails for a new one in a newer mlx-lm."""
    assert set(MARKS) == {*tool_parser_names(), "dsml"}


@pytest.mark.parametrize("parser", MARKS)
def test_every_pattern_of_a_reader_is_limited(parser: str) -> None:
    """Also those of a module whose functions it uses."""
    own = vars(sys.modules[tool_syntax(parser).parse.__module__])
    functions = [value for value in own.values() if isinstance(value, FunctionType)]
    for name in {function.__module__ for function in functions} - {limit_module.__module__}:
        values = list(vars(sys.modules[name]).values())
        assert not [value for value in values if isinstance(value, regex.Pattern | re.Pattern)]
        assert regex not in values
        assert re not in values


def test_the_collector_waits_for_a_parser() -> None:
    """Its pauses count as CPU time, too, and are longer than the limit in a server with a large heap."""
    with time_limit(1.0):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_block_that_takes_too_long_is_malformed_and_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt would cost the event loop the same again."""
    monkeypatch.setattr(reading, "_MATCHING_SECONDS", 0.0)
    syntax = tool_syntax("glm47")
    tries = []

    def parse(raw: str, tools: list[dict[str, Any]] | None) -> Any:
        tries.append(raw)
        return syntax.parse(raw, tools)

    raw = "get_time<arg_key>zone</arg_key><arg_value>UTC</arg_value>"
    with pytest.raises(UnreadableCall, match="too long"):
        read_block(raw, replace(syntax, parse=parse), AnswerCalls(OfferedTools(TOOLS), str, parallel=True))
    assert tries == [raw]


@pytest.mark.parametrize("parser", ["glm47", "qwen3_coder", "gemma4", "minicpm5"])
def test_a_whole_call_with_a_long_file_is_read(parser: str) -> None:
    """The limit is for failing matches, not for long texts."""
    written = next(one for one in WRITTEN if one.name == parser)
    assert written.form.tools is not None
    city = str(dict(written.calls[0][1])["city" if written.calls[0][0] == "get_weather" else "zone"])
    raw = written.raw.replace(city, "a line of a file, <p>and</p> more\n" * 6_000)
    message, reason = message_of(pipeline(written.form, in_reasoning=written.in_reasoning), [raw.encode()])
    assert reason is FinishReason.TOOL_CALLS
    assert len(str(message.calls)) > 200_000
