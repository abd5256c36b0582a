"""The marks that a chat template writes around an answer's parts: which of them end an answer, and which no
notation reads.

A folder may name another end of turn than its template writes (Llama 3 of April 2024, Gemma 3's quantised
folders, Idefics 3): the answer would go on with the user's next question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduler.answer.answer_format import AnswerFormat, Layout
from scheduler.prompt.chat_template import Renderer, tried
from scheduler.prompt.history_forms import CALL, END, QUESTION, TEXT, THOUGHTS, probe, turn_of
from scheduler.request import Message

_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
_OF_HARMONY = ("<|return|>", "<|call|>")
"""What ends a message there, `<|end|>`, does not end an answer."""


@dataclass(frozen=True, slots=True)
class WrittenMarks:
    """What a template writes between the parts of a conversation; empty where it does not write them."""

    thoughts: tuple[str, ...] = ()
    """The mark before thoughts, and the one behind them."""
    call: str = ""
    """The first mark of a call behind text."""
    within: str = ""
    """All that stands between the parts of one answer."""
    behind: str = ""
    """What stands between an answer and the next question."""


def marks_of(render: Renderer, *, apart: bool) -> WrittenMarks:
    """Return the marks. `apart`: text and calls do not stand as the template writes them."""

    def between(first: str, last: str, *messages: Message) -> str:
        text = tried(render, probe(*messages)) or ""
        start, end = text.find(first), text.rfind(last)
        return text[start + len(first) : end] if 0 <= start < end else ""

    thinks = turn_of(1, reasoning_content=THOUGHTS)
    before, after = between(QUESTION, THOUGHTS, *thinks), between(THOUGHTS, CALL, *thinks)
    plain = between(QUESTION, CALL, *turn_of(1))
    opening, closing = ([one for one in _MARK.findall(text) if one not in plain] for text in (before, after))
    spoken = "" if apart else between(TEXT, CALL, *turn_of(1, content=TEXT))
    asked, answer = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": END}
    return WrittenMarks(
        (*opening[-1:], *closing[:1]),
        next(iter(_MARK.findall(spoken)), ""),
        after + spoken,
        between(END, QUESTION, asked, answer, asked),
    )


def ends_of_turn(
    marks: WrittenMarks, layout: Layout, special: dict[str, int], known: frozenset[int]
) -> frozenset[int]:
    """Return the tokens that end an answer and that no file names. `special`: the special tokens; `known`:
    those that files name."""
    if layout is Layout.HARMONY:
        return frozenset(special[mark] for mark in _OF_HARMONY if mark in special) - known
    written = {mark: token for mark, token in special.items() if mark in marks.behind}
    if known.intersection(written.values()):
        return frozenset()
    behind = marks.behind.lstrip()
    first = max((mark for mark in written if behind.startswith(mark)), key=len, default="")
    # One that stands between thoughts and a call ends neither.
    return frozenset() if not first or first in marks.within else frozenset({written[first]})


def found(form: AnswerFormat, marks: WrittenMarks, ends: Sequence[str]) -> str:
    """Return one line for an operator: which notations and ends of turn were found, and what is not read."""
    own = form.reasoning
    thoughts = form.reasoning_notation + (f" ({own.start} to {own.end})" if own else "")
    calls = form.call_notation
    facts = (f"calls: {calls}", f"thoughts: {thoughts}", f"ends: {' '.join(ends) or 'none'}")
    return "; ".join((*facts, *_unread(form, marks)))


def _unread(form: AnswerFormat, marks: WrittenMarks) -> Iterator[str]:
    if form.layout is not Layout.MARKS:
        return
    start = "" if form.reasoning is None else form.reasoning.start
    if len(marks.thoughts) == 2 and marks.thoughts[0] not in start:
        yield f"not read: thoughts between {' and '.join(marks.thoughts)}"
    read = () if form.tools is None else (form.tools, *form.tools.also)
    known = (mark for one in read for mark in one.control)
    if marks.call and form.tool_calls != "native" and not any(marks.call in mark for mark in known):
        yield f"not read: calls behind {marks.call}"
