"""Read a block of calls while it is written, in any described notation.

The kind of notation decides which reader follows the text. Where the text is not as the model's template has
it, the reader gives up, and mlx-lm's parser decides about the whole block when it ends: a call that was begun
continues if the parser finds the same in it, and is malformed otherwise. Nothing sent is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from json import loads

from scheduler.answer.answer_format import ToolSyntax
from scheduler.answer.notations.catalog import described
from scheduler.answer.notations.description import Braced, JsonObject, Keywords, Tagged
from scheduler.answer.tool_calls.block_text import BlockText, Pieces
from scheduler.answer.tool_calls.braced import BracedCalls
from scheduler.answer.tool_calls.json_calls import JsonCalls
from scheduler.answer.tool_calls.keywords import KeywordCalls
from scheduler.answer.tool_calls.reading import (
    LONG_TEXT,
    AnswerCalls,
    BlockReader,
    CallReader,
    CollectedBlock,
    JsonReader,
    ParsedCall,
    UnreadableCall,
    read_block,
)
from scheduler.answer.tool_calls.tagged import TaggedCalls
from scheduler.answer.tool_calls.text_stream import NotAsWritten, TextEnded
from scheduler.answer.tool_calls.written_call import WrittenCall
from scheduler.events import AnswerPiece, ToolCallArguments

_CLOSERS = frozenset(">)]}|,'\"\n")
"""A text without any of them ends no value, in any notation."""
_LONGEST_TOKEN = 64
"""Within this many characters no string ends and another value both begins and ends."""


def call_reader(syntax: ToolSyntax, calls: AnswerCalls, *, in_reasoning: bool) -> CallReader:
    """Return the reader of one block. `in_reasoning`: the block may be no call at all, so nothing is sent
    before its end."""
    if syntax.streams:
        return BlockReader(syntax, calls) if in_reasoning else JsonReader(syntax, calls)
    block = BlockText(syntax, calls)
    pieces = _pieces(block)
    if pieces is None:
        return BlockReader(syntax, calls)
    reader = NotationReader(block, pieces)
    return WholeBlock(reader, calls) if in_reasoning else reader


def _pieces(block: BlockText) -> Pieces | None:
    """Return what reads the block's text; None if its notation is not described."""
    if block.syntax.name == "mistral":
        return JsonCalls(block).pieces()
    notation = described(block.syntax.name)
    if notation is None:
        return None
    match notation.arguments:
        case Tagged() as tagged:
            return TaggedCalls(block, notation, tagged).pieces()
        case Braced() as braced:
            return BracedCalls(block, notation, braced).pieces()
        case Keywords():
            return KeywordCalls(block).pieces()
        case JsonObject():
            return JsonCalls(block).pieces()


class NotationReader:
    """A `CallReader` that streams the pieces of one notation's reader, and lets mlx-lm's parser decide where
    that gives up."""

    def __init__(self, block: BlockText, pieces: Pieces) -> None:
        self._block = block
        self._pieces = pieces
        self._parts: list[str] = []
        self._length = 0
        self._fault: Exception | None = None

    @property
    def raw(self) -> str:
        return "".join(self._parts)

    def weighs(self, text: str | None) -> bool:
        calls, at_end = self._block.calls, text is None
        if not calls.offered.are_read:
            return True
        if text is not None and (self._fault is not None or self._goes_on(text)):
            return False
        sent = 0 if self._fault is not None else self._block.sent_to
        waiting = self._length - sent + len(text or "")
        return waiting > LONG_TEXT or calls.large or (at_end and calls.offered.any_large())

    def _goes_on(self, text: str) -> bool:
        """Return whether `text` ends no value but a string that was sent as it came."""
        if _CLOSERS.isdisjoint(text):
            return True
        written = self._block.written
        return len(text) <= _LONGEST_TOKEN and bool(written) and written[-1].in_string

    def feed(self, text: str) -> Iterator[AnswerPiece]:
        if not self._block.calls.offered.are_read:
            self._block.calls.offered.read()
        self._parts.append(text)
        self._length += len(text)
        if self._fault is None:
            self._block.stream.add(text)
            yield from self._available()

    def close(self) -> Iterator[AnswerPiece]:
        if self._fault is None:
            self._block.stream.close()
            yield from self._available()
        if self._fault is not None:
            yield from self._decided_by_the_parser(self._fault)

    def _available(self) -> Iterator[AnswerPiece]:
        """Yield all pieces up to where more text is needed."""
        try:
            while (piece := next(self._pieces, None)) is not None:
                yield piece
        except (NotAsWritten, ValueError, RecursionError) as error:
            self._fault = error

    def _decided_by_the_parser(self, fault: Exception) -> Iterator[AnswerPiece]:
        written = self._block.written
        if written and written[-1].inside_member and isinstance(fault, TextEnded):
            # The parser would leave out this argument, and the client run the call without it.
            raise self._unreadable(fault)
        try:
            read = read_block(self.raw, self._block.syntax, self._block.calls)
        except UnreadableCall as error:
            raise self._unreadable(error) from error
        if len(read) < len(written) or any(
            one.started.name != call.name for one, call in zip(written, read, strict=False)
        ):
            raise self._unreadable(fault)
        if written and not written[-1].done:
            yield self._rest(written[-1], read[len(written) - 1], fault)
        for call in read[len(written) :]:
            if not self._block.calls.enough:
                yield from self._block.calls.whole(call)

    def _rest(self, written: WrittenCall, read: ParsedCall, fault: Exception) -> ToolCallArguments:
        whole = self._block.calls.fitted(read)
        if not whole.startswith(written.sent):
            raise self._unreadable(fault)
        written.done = True
        return written.json(whole[len(written.sent) :])

    def _unreadable(self, why: Exception) -> UnreadableCall:
        """Return an error for the call that was begun or, if none was, for the text behind the finished
        calls."""
        written = self._block.written
        if written and not written[-1].ended:
            rest = self.raw[self._block.sent_to :]
            if _is_json(written[-1].sent + rest):
                rest = self.raw[self._block.begun_at :]
            return UnreadableCall(why, written[-1].started.index, rest, read_to=self._block.whole_to)
        return UnreadableCall(why, read_to=self._block.whole_to)


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class WholeBlock(CollectedBlock):
    """Yields all pieces of another reader at the end of the block."""

    def __init__(self, reader: NotationReader, calls: AnswerCalls) -> None:
        super().__init__(calls)
        self._reader = reader

    def close(self) -> Iterator[AnswerPiece]:
        before = self._calls.started, self._calls.ended
        try:
            pieces = [*self._reader.feed(self.raw), *self._reader.close()]
        except UnreadableCall:
            self._calls.started, self._calls.ended = before
            raise
        yield from pieces
