"""Make the events of an answer from its text: text, reasoning and tool calls, in order.

Marks are found in decoded text: a mark's last character may be one token with what follows. Text that may
begin a mark is held back until it is decided, so the events do not depend on the pieces in which the text
arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from scheduler.answer.answer_format import AnswerFormat, Layout
from scheduler.answer.harmony import BOUNDS, ENDS, MESSAGE, Header
from scheduler.answer.text_stream import Heavy, Reading, TextEnded, TextStream, is_control
from scheduler.answer.token_spans import TokenSpans
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.answer.tool_calls.reading import CallReader
from scheduler.answer.tool_calls.written_call import AnswerCalls
from scheduler.events import AnswerPiece, FinishReason, MalformedCall, ReasoningDelta, TextDelta

_BARE = ("{", "[")


class SectionKind(Enum):
    TEXT = auto()
    REASONING = auto()
    HIDDEN = auto()
    """Headers that are not part of the answer."""


class SectionText:
    """The text of the sections of one kind. White space next to a mark is part of the format and is
    dropped, unless text follows on both sides of the mark: then one of the two stays between them."""

    def __init__(self, separator: str) -> None:
        """`separator` stands between two texts that have no white space between them."""
        self._separator = separator
        self._begun = False
        self._at_mark = False
        self._space: list[str] = []
        """White space behind the newest text, or behind the mark. A list: joining it with each token would be
        quadratic."""
        self._gap = ""
        """What stays between the text before the mark and the one behind it."""

    def add(self, text: str) -> tuple[str, str]:
        """Return what stands between two sections, if a text begins here, and what is certain of the text."""
        kept = text.rstrip()
        if not kept:
            self._space.append(text)
            return "", ""
        whole, gap = "".join(self._space) + kept, ""
        if self._at_mark:
            inner = whole.lstrip()
            if not self._begun:
                whole = inner
            elif len(inner) == len(whole):
                gap = self._gap
        self._space = [text[len(kept) :]] if len(kept) < len(text) else []
        self._begun, self._at_mark = True, False
        return gap, whole

    def mark(self) -> None:
        if not self._at_mark:
            self._gap = "".join(self._space) or self._separator
        self._at_mark, self._space = True, []

    @property
    def at_mark(self) -> bool:
        """Return whether there is no text since the last mark or the beginning."""
        return self._at_mark or not self._begun

    def unmarked(self) -> None:
        """Take note that what seemed to be marks is part of the text."""
        self._begun, self._at_mark, self._space = True, False, []

    def trailing(self) -> str:
        """Return the white space behind the newest text."""
        return "" if self._at_mark else "".join(self._space)

    def rest(self) -> str:
        """Return the same at the end of the answer, where it is part of the text."""
        space, self._space = self.trailing(), []
        return space


class Assembly:
    def __init__(
        self,
        answer_format: AnswerFormat,
        tools: OfferedTools,
        call_id: Callable[[int], str],
        *,
        in_reasoning: bool,
        parallel_calls: bool,
        spans: TokenSpans | None = None,
    ) -> None:
        """`in_reasoning`: the prompt opened it. `spans` is given only if text carries log-probabilities."""
        self.format = answer_format
        self.calls = AnswerCalls(tools, call_id, parallel=parallel_calls)
        self._stream = TextStream()
        self._spans = spans
        is_marked = answer_format.layout is Layout.MARKS
        opens = answer_format.reasoning is not None and (in_reasoning or answer_format.reasoning.opens)
        kind = SectionKind.REASONING if opens else SectionKind.TEXT
        self.section = kind if is_marked else SectionKind.HIDDEN
        separator = "" if is_marked else "\n"
        self._texts = {kind: SectionText(separator) for kind in (SectionKind.TEXT, SectionKind.REASONING)}
        if self.section is not SectionKind.TEXT:
            self._enter(self.section)
        notation = answer_format.notation if tools else None
        self._block = None if notation is None else CallReader(notation, self.calls, self._stream)
        self._result_mark = notation.result_mark if notation is not None else ""
        self._bare = _BARE if notation is not None and notation.bare else ()
        self._ended = self._cut = False
        self._pieces = self._answer(self._marked if is_marked else self._message)

    @property
    def complete(self) -> bool:
        """Return whether the answer is complete, although the model may generate more: only one call was
        allowed, or it began to write a tool's result itself."""
        return self._ended or self.calls.enough

    def feed(self, text: str) -> Iterator[AnswerPiece | Heavy]:
        self._stream.add(text)
        return self._available()

    def finish(self, reason: FinishReason, *, cut_by_client: bool) -> Iterator[AnswerPiece | Heavy]:
        """End the answer. `cut_by_client`: a stop string ended it, perhaps inside a call."""
        self._stream.closed = True
        self._cut = reason is FinishReason.LENGTH or cut_by_client
        if self._block is not None:
            self._block.cut = self._cut
        yield from self._available()
        if self.section is SectionKind.TEXT and (rest := self._texts[SectionKind.TEXT].rest()):
            yield self._text(rest)

    def _available(self) -> Iterator[AnswerPiece | Heavy]:
        """Yield all pieces up to where more text is needed."""
        while not self.complete and (piece := next(self._pieces, None)) is not None:
            yield piece

    def _answer(self, section: Callable[[], Reading[None]]) -> Reading[None]:
        try:
            while not self._ended:
                yield from section()
        except TextEnded:
            pass

    def _enter(self, section: SectionKind) -> None:
        self.section = section
        for shown in self._texts.values():
            shown.mark()

    def _say(self, text: str) -> Iterator[AnswerPiece]:
        """Yield text of the section, up to the white space at its end."""
        if self.section is SectionKind.HIDDEN:
            return
        gap, certain = self._texts[self.section].add(text)
        if self.section is SectionKind.REASONING:
            if gap + certain:
                yield ReasoningDelta(gap + certain)
            return
        if gap:
            yield TextDelta(gap)
        if certain:
            yield self._text(certain, behind=len(text) - len(text.rstrip()))

    def _text(self, text: str, behind: int = 0) -> TextDelta:
        """Return the event for `text`, which ends `behind` characters before what was read."""
        if self._spans is None:
            return TextDelta(text)
        end = self._stream.position - behind
        return TextDelta(text, self._spans.take(end - len(text), end))

    def _until(self, marks: Sequence[str], firsts: Sequence[str] = ()) -> Reading[str]:
        """Yield text before the first of `marks`, and return that mark, unread. `firsts` count only where
        nothing but white space stands before them. Raise TextEnded."""
        while True:
            text, mark = self._stream.before((*marks, *firsts))
            if text:
                yield from self._say(text)
            if firsts and text.strip():
                # The rest of the text may have begun one of them.
                mark, firsts = mark if mark in marks else "", ()
            elif not mark:
                yield from self._stream.more()
            if mark:
                return mark

    def _marked(self) -> Reading[None]:
        """Read a section of an answer in which marks alone decide, up to the next one."""
        reasoning, block, stream = self.format.reasoning, self._block, self._stream
        in_text = self.section is SectionKind.TEXT
        hidden = self.format.hidden_marks
        firsts, marks = list[str](), [*hidden]
        if reasoning is not None:
            anywhere = reasoning.anywhere or not in_text
            (marks if anywhere else firsts).append(reasoning.end)
            (marks if anywhere and in_text else firsts).append(reasoning.start)
            firsts += reasoning.again if not in_text else ()
        calls = () if block is None else (*block.openers, *block.prefixes)
        if in_text:
            marks += [*self._bare, *([self._result_mark] if self._result_mark else [])]
        unclosed = () if block is None else tuple(filter(is_control, block.closers))
        while True:
            mark = yield from self._until((*marks, *calls, *unclosed), firsts)
            stream.keep()
            if block is not None and (mark in calls or (mark in self._bare and in_text)):
                firsts = []
                is_sure = in_text and mark in block.sure and not self._bare
                if not is_sure and not (yield from self._begins_call(block)):
                    yield from self._say(stream.read(1))
                elif in_text:
                    yield from self._calls_of(block)
                    unclosed = block.closers
                else:
                    yield from self._considered(block, (*hidden, reasoning.end if reasoning else ""))
                    if self.section is SectionKind.TEXT:
                        return
                continue
            stream.release()
            stream.read(len(mark))
            self._texts[self.section].mark()
            if mark == self._result_mark:
                self._ended = True
                return
            if reasoning is not None and in_text and mark == reasoning.start:
                return self._enter(SectionKind.REASONING)
            if not in_text and mark not in (reasoning.again if reasoning else ()):
                return self._enter(SectionKind.TEXT)

    def _begins_call(self, block: CallReader) -> Reading[bool]:
        begun = self._stream.position
        begins = yield from block.begins()
        if not begins and self._cut and (yield from self._stream.ended()):
            # Half a call is no text.
            raise TextEnded
        self._stream.rewind(begun)
        return begins

    def _calls_of(self, block: CallReader) -> Reading[None]:
        shown, malformed = self._texts[self.section], self.calls.malformed
        space, alone = shown.trailing(), shown.at_mark
        shown.mark()
        yield from block.read(space, alone=alone)
        self._stream.release()
        if self.calls.enough:
            # The answer is complete.
            yield None
        if self.calls.malformed > malformed:
            shown.unmarked()

    def _considered(self, block: CallReader, ends: Sequence[str]) -> Reading[None]:
        """Read a call in reasoning. It is one if the reasoning does not go on to its end mark: then the model
        only considered it, and all of it is reasoning. So nothing of it is sent before that is known."""
        begun, stream = self._stream.position, self._stream
        while True:
            _, mark = stream.before(ends)
            if mark or stream.closed:
                break
            yield None
        raw = stream.raw(begun)
        if not mark:
            stream.rewind(begun)
            before = self.calls.started, self.calls.faults.copy()
            pieces = [piece for piece in block.read("") if piece is not None]
            if pieces and not any(isinstance(piece, MalformedCall) for piece in pieces):
                yield from pieces
                return self._enter(SectionKind.TEXT)
            self.calls.withdraw(*before)
            stream.read(begun + len(raw) - stream.position)
        yield from self._say(raw)

    def _message(self) -> Reading[None]:
        """Read a message with its header."""
        self._enter(SectionKind.HIDDEN)
        stream, header, block = self._stream, Header(), self._block
        begun, mark = stream.position, ""
        stream.keep()
        while not mark:
            text, mark = stream.before((MESSAGE, *ENDS))
            header.text += text
            if header.is_text:
                stream.rewind(begun)
                header.text = mark = ""
                break
            if not mark and (stream.closed or header.is_long):
                break
            if not mark:
                yield None
        stream.release()
        recipient = None if block is None or mark != MESSAGE else header.recipient(self.calls.offered)
        if recipient is None:
            self.section = SectionKind.REASONING if header.is_reasoning else SectionKind.TEXT
        if mark == MESSAGE:
            stream.read(len(mark))
        elif not self._cut or header.is_long:
            yield from self._say(header.message)
        if block is not None and recipient is not None:
            yield from self._addressed(block, recipient)
        mark = yield from self._until(BOUNDS)
        if mark in ENDS:
            stream.read(len(mark))

    def _addressed(self, block: CallReader, recipient: str) -> Reading[None]:
        """Read a message for a tool, up to its end."""
        if self.format.layout is Layout.HARMONY:
            return (yield from block.arguments_of(recipient))
        while True:
            _, mark = self._stream.before((*block.openers, *ENDS))
            if mark in block.openers:
                self._stream.keep()
                yield from block.read("")
                self._stream.release()
            elif mark:
                return
            else:
                yield from self._stream.more()
