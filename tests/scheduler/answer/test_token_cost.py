"""The event loop's work for a token does not depend on the length of the answer."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from api.answers.whole_answer import WholeChoice
from scheduler.answer.answer_format import AnswerFormat
from scheduler.events import AnswerPiece, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStarted
from tests.scheduler.answer.notations import HARMONY, KIMI_K3, MUSE, fed, form, pipeline
from tests.scheduler.answer.templates import TEMPLATES
from tests.scheduler.answer.tool_calls.test_streamed_calls import OTHER, TOOL, name_in

_TOKENS = 5_000
_MOST_BYTES = 4_096
"""What a token may allocate: a copy of the answer so far would be 20,000 or more."""


def _in_calls() -> Iterator[tuple[str, tuple[AnswerFormat, bytes, bytes]]]:
    """A long text in a call of each notation: where it leaves, where it may be none, and within a value."""
    for name, template in TEMPLATES.items():
        for key in ("text", "maybe", "object") if template.nests else ("text", "maybe"):
            arguments = {key: {"a": "word "} if key == "object" else "word "}
            raw = template.render([(name_in(template), arguments)])
            yield f"{name}, {key}", (form(template.parser), raw[: raw.index("word ")].encode(), b"word ")


_HARMONY_CALL = b"<|channel|>commentary to=functions.f<|message|>"
_QWEN_CALL = b"<tool_call>\n<function=edit-file>\n"
ANSWERS: dict[str, tuple[AnswerFormat, bytes, bytes]] = {
    # name: (the notation, the beginning of the answer, the repeated token)
    **dict(_in_calls()),
    "text": (form(None), b"", b"word "),
    "space-first": (form("json_tools", "think"), b"", b"    "),
    "space-in-text": (form("json_tools", "think"), b"x", b"    "),
    "space-in-reasoning": (form("json_tools", "think"), b"<think>x", b"\n\n\n\n"),
    "half-marks": (form("json_tools", "think"), b"", b"<tool_cal"),
    "half-marks-of-kimi": (KIMI_K3, b"", b"<|open|>"),
    "muse": (MUSE, b"", b"word "),
    "harmony-header": (HARMONY, b"", b"head "),
    "harmony-text": (HARMONY, b"<|channel|>final<|message|>", b"word "),
    "harmony-call": (HARMONY, _HARMONY_CALL + b'{"a": "', b"word "),
    "harmony-behind-the-arguments": (HARMONY, _HARMONY_CALL + b"{}", b"word "),
    "block": (form("glm47"), b"<tool_call>", b"word "),
    "call-in-reasoning": (form("json_tools", "think"), b"<think><tool_call>", b"word "),
    "qwen-key": (form("qwen3_coder"), _QWEN_CALL + b"<parameter=", b"word"),
    "qwen-not-as-written": (form("qwen3_coder"), _QWEN_CALL + b"what", b"word"),
    "glm-half-marks": (form("glm47"), b"<tool_call>now<arg_key>text</arg_key><arg_value>", b"</arg_"),
    "space-in-a-block": (form("minimax_m2"), b"<minimax:tool_call>", b"    "),
    "json-name-without-end": (form("json_tools"), b'<tool_call>{"name": "', b"word "),
    "json-list": (form("json_tools"), b"<tool_call>[", b"word "),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_token_late_in_an_answer_allocates_no_more_than_an_early_one(name: str) -> None:
    """Bytes, not seconds: code that copies or joins held back text shows here. The median, because lists grow
    now and then."""
    notation, beginning, token = ANSWERS[name]
    answer = pipeline(notation, stop=("a stop string",), tools=(TOOL, OTHER))
    for piece in (beginning, *([token] * _TOKENS)):
        list(fed(answer, piece))
    assert statistics.median(_allocated_by(lambda: list(fed(answer, token)))) < _MOST_BYTES


@pytest.mark.parametrize(
    "piece", [TextDelta("word "), ReasoningDelta("word "), ToolCallArguments(0, "word ")]
)
def test_a_piece_late_in_a_whole_answer_allocates_no_more_than_an_early_one(piece: AnswerPiece) -> None:
    """The same for a client that does not stream."""
    choice = WholeChoice()
    if isinstance(piece, ToolCallArguments):
        choice.add(ToolCallStarted(0, "id", "f"))
    for _ in range(_TOKENS):
        choice.add(piece)
    assert statistics.median(_allocated_by(lambda: choice.add(piece))) < _MOST_BYTES


def _allocated_by(work: Callable[[], object]) -> list[int]:
    """Peak bytes of each of 21 calls."""
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(21):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            work()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return peaks
