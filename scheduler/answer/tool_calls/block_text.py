"""One block of calls that is being read: its text, and the calls that were begun in it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from scheduler.answer.answer_format import ToolSyntax
from scheduler.answer.tool_calls.reading import AnswerCalls, ParsedCall, UnreadableCall, read_block
from scheduler.answer.tool_calls.text_stream import NotAsWritten, TextStream
from scheduler.answer.tool_calls.written_call import WrittenCall
from scheduler.events import AnswerPiece

Pieces: TypeAlias = Generator[AnswerPiece | None, None, None]
"""The pieces of the answer; None where more text is needed."""
TextPieces: TypeAlias = Generator[AnswerPiece | None, None, str]


class BlockText:
    def __init__(self, syntax: ToolSyntax, calls: AnswerCalls) -> None:
        self.syntax = syntax
        self.calls = calls
        self.stream = TextStream()
        self.written: list[WrittenCall] = []
        self.begun_at = 0
        """The offset in the block at which the newest call begins."""
        self.sent_to = 0
        """The offset up to which the block's text has been sent as arguments."""
        self.whole_to = 0
        """The offset at which the newest whole call ends."""

    def begin(self, name: str, call_id: str | None = None) -> WrittenCall:
        """Begin a call. Raise NotAsWritten for an empty name."""
        if not name:
            raise NotAsWritten("it names no tool")
        calls = self.calls
        types = partial(calls.offered.types, name)
        call = WrittenCall(calls.start(name, call_id), calls.offered.schema(name), calls.budget, types)
        self.written.append(call)
        self.sent_to = self.stream.position
        return call

    def sent(self) -> None:
        """Take note that all text read so far has been sent."""
        self.sent_to = self.stream.position

    def ended(self) -> None:
        """Take note that the newest call is whole."""
        self.calls.ended += 1
        self.written[-1].ended = True
        self.whole_to = self.stream.position

    def one_call(self, text: str, syntax: ToolSyntax | None = None) -> ParsedCall:
        """Return what mlx-lm reads in `text`, a whole call. Raise NotAsWritten."""
        try:
            (call,) = read_block(text, syntax or self.syntax, self.calls)
        except (UnreadableCall, ValueError) as error:
            raise NotAsWritten(str(error)) from error
        return call

    def one_value(self, text: str, key: str, syntax: ToolSyntax | None = None) -> Any:
        """Return what mlx-lm reads as the value of `key`, the only argument of the call `text`. Raise
        NotAsWritten."""
        arguments = self.one_call(text, syntax).arguments
        if arguments.keys() != {key}:
            raise NotAsWritten(f"the value of {key!r} cannot be read")
        return arguments[key]

    def listed(self, one_call: Callable[[], Pieces]) -> Pieces:
        """Read the rest of a list whose bracket is open, each call with `one_call`. Raise NotAsWritten."""
        mark = ","
        while mark == ",":
            yield from self.stream.space()
            self.begun_at = self.stream.position
            if self.calls.enough:
                yield from self.skip()
                return
            yield from one_call()
            self.ended()
            yield from self.stream.space()
            mark = yield from self.stream.one_of([",", "]"])
        if not (yield from self.stream.ends()):
            raise NotAsWritten("there is text behind the calls")

    def skip(self) -> Pieces:
        """Read and drop the rest of the block: the client allows only one call."""
        while not (yield from self.stream.ends()):
            yield from self.stream.some()

    def text_until(self, call: WrittenCall, marks: Sequence[str]) -> TextPieces:
        """Yield the text before the first of `marks` as the inside of a string. Return that mark."""
        while True:
            text, mark = self.stream.before(marks)
            if text:
                yield call.string(text)
                # The mark's own characters come with the rest of a malformed call.
                self.sent_to = self.stream.position - len(mark)
            if mark:
                return mark
            yield from self.stream.more()
