"""Sections to the events a client reads: text, reasoning, and tool calls one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scheduler.answer.answer_format import AnswerFormat
from scheduler.answer.splitter import REASONING, Kind, Opened, Section, Splitter
from scheduler.answer.token_spans import TokenSpans
from scheduler.answer.tool_calls.reading import BlockReader, CallReader, Calls, JsonReader, ObjectReader
from scheduler.errors import MalformedToolCall
from scheduler.events import AnswerPiece, FinishReason, ReasoningDelta, TextDelta
from scheduler.request import Tool


class Assembly:
    """One answer. White space between sections belongs to the dialect, not to the text, and is dropped."""

    def __init__(
        self,
        answer_format: AnswerFormat,
        splitter: Splitter,
        tools: Sequence[Tool],
        call_id: Callable[[int], str],
        *,
        parallel_calls: bool,
        spans: TokenSpans | None = None,
    ) -> None:
        """`spans` where the tokens of the text are wanted, too."""
        self._format = answer_format
        self._splitter = splitter
        self._calls = Calls(tools, call_id, parallel=parallel_calls)
        self._reader: CallReader | None = None
        self._call_mark = ""
        """How the call began, should it turn out to be none: with the space before it."""
        self._edge = splitter.section.kind is not Kind.TEXT
        """Whether the section's text so far is only white space next to a mark."""
        self._space: list[str] = []
        """White space that is held back, for it may stand before a mark. Pieces: a model that writes nothing
        else would have it copied with each token."""
        self._spans = spans
        self._read = 0
        """Characters of the answer up to the end of the piece at hand."""
        self.whole_calls = 0

    @property
    def in_reasoning(self) -> bool:
        section = self._splitter.section
        return section.kind is Kind.REASONING or section.in_reasoning

    @property
    def in_text(self) -> bool:
        return self._splitter.section.kind is Kind.TEXT

    @property
    def complete(self) -> bool:
        """Whether nothing that may still come is wanted: one call was all that was allowed."""
        return self.whole_calls > 0 and self._calls.enough

    def feed(self, text: str) -> Iterator[AnswerPiece]:
        """Raises MalformedToolCall."""
        section = self._splitter.section
        for cut in self._splitter.feed(text):
            if isinstance(cut, str):
                self._read += len(cut)
                yield from self._piece(section, cut)
                continue
            self._read += len(cut.mark)
            yield from self._close(section, cut)
            if self.complete:
                return
            section = self._splitter.section
            if section is cut.section:
                self._open(section, cut.mark)

    def finish(self, reason: FinishReason, *, cut_by_client: bool) -> Iterator[AnswerPiece]:
        """The answer's end. `cut_by_client`: a stop string ended it, maybe in the middle of a call."""
        section = self._splitter.section
        if rest := self._splitter.finish():
            self._read += len(rest)
            yield from self._piece(section, rest)
        if self._reader is not None:
            yield from self._finish_call(section, self._reader, reason, cut_by_client)
        elif self._space and section.kind is Kind.TEXT:
            yield self._text(self._take_space())

    def _finish_call(
        self, section: Section, reader: CallReader, reason: FinishReason, cut_by_client: bool
    ) -> Iterator[AnswerPiece]:
        """The answer ends inside a call: it is whole where the dialect has no end mark (or the end of
        the turn is one), and cut in two where something else ended the answer."""
        syntax = self._format.tools
        if reason is FinishReason.LENGTH and not section.in_reasoning and (syntax is None or syntax.end):
            return
        try:
            yield from self._end_call()
        except MalformedToolCall:
            if section.in_reasoning:
                yield ReasoningDelta(self._call_mark + reader.raw)
            elif reason is not FinishReason.LENGTH and not cut_by_client:
                raise

    def _open(self, section: Section, mark: str) -> None:
        if section.kind is Kind.CALL:
            self._reader = self._make_reader(section)
            self._call_mark = "".join(self._space) + mark
        self._edge, self._space = True, []

    def _make_reader(self, section: Section) -> CallReader:
        if section.call_name is not None:
            return ObjectReader(section.call_name, self._calls)
        syntax = self._format.tools
        assert syntax is not None, "a call in a dialect that has none"
        if syntax.streams and not section.in_reasoning:
            return JsonReader(syntax, self._calls)
        return BlockReader(syntax, self._calls)

    def _close(self, section: Section, cut: Opened) -> Iterator[AnswerPiece]:
        """`section` is over. Words about a call, in reasoning, turn out to be none."""
        if (reader := self._reader) is None:
            return
        if not section.in_reasoning:
            yield from self._end_call()
            return
        reasoning = self._format.reasoning
        if reasoning is not None and cut.mark == reasoning.end:
            self._reader, self._edge = None, False
            yield ReasoningDelta(self._call_mark + reader.raw)
            return
        try:
            yield from self._end_call()
        except MalformedToolCall:
            self._reader, self._edge = None, False
            self._splitter.reopen(REASONING)
            yield ReasoningDelta(self._call_mark + reader.raw + cut.mark)

    def _end_call(self) -> Iterator[AnswerPiece]:
        assert self._reader is not None
        yield from self._reader.close()
        self._reader = None
        self.whole_calls = self._calls.started

    def _piece(self, section: Section, text: str) -> Iterator[AnswerPiece]:
        match section.kind:
            case Kind.CALL:
                assert self._reader is not None, "a call's text outside of a call"
                yield from self._reader.feed(text)
            case Kind.HIDDEN:
                pass
            case Kind.TEXT:
                if trimmed := self._trim(text):
                    yield self._text(trimmed)
            case Kind.REASONING:
                if trimmed := self._trim(text):
                    yield ReasoningDelta(trimmed)

    def _text(self, text: str) -> TextDelta:
        """`text` ends where what is held back begins."""
        if self._spans is None:
            return TextDelta(text)
        end = self._read - sum(map(len, self._space))
        return TextDelta(text, self._spans.take(end - len(text), end))

    def _trim(self, text: str) -> str:
        """`text` without white space after a mark, and holding back what may stand before one."""
        if self._edge:
            text = text.lstrip()
            self._edge = not text
        kept = text.rstrip()
        if not kept:
            if text:
                self._space.append(text)
            return ""
        whole = self._take_space() + kept
        if len(kept) < len(text):
            self._space.append(text[len(kept) :])
        return whole

    def _take_space(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space
