"""Convert sections to answer events: text, reasoning and tool calls, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

from scheduler.answer.answer_format import AnswerFormat
from scheduler.answer.splitter import REASONING, Opened, Section, SectionKind, Splitter
from scheduler.answer.token_spans import TokenSpans
from scheduler.answer.tool_calls.notation_reader import call_reader
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.answer.tool_calls.reading import AnswerCalls, CallReader, ObjectReader, UnreadableCall
from scheduler.events import AnswerPiece, FinishReason, MalformedCall, ReasoningDelta, TextDelta


class Heavy(Enum):
    """Stands between the pieces of an answer: what comes next may take too long for the event loop, so the
    iterator should be continued in a worker thread."""

    HEAVY = "heavy"


HEAVY: Final = Heavy.HEAVY


class Assembly:
    """Makes the events of one answer. White space between sections is part of the format and is dropped."""

    def __init__(
        self,
        answer_format: AnswerFormat,
        splitter: Splitter,
        tools: OfferedTools,
        call_id: Callable[[int], str],
        *,
        parallel_calls: bool,
        spans: TokenSpans | None = None,
    ) -> None:
        """`spans` is given only if pieces of text carry their tokens' log-probabilities."""
        self._format = answer_format
        self._splitter = splitter
        self._calls = AnswerCalls(tools, call_id, parallel=parallel_calls)
        self._reader: CallReader | None = None
        self._call_mark = ""
        """The call's start mark with the space before it, in case it turns out not to be a call."""
        self._edge = splitter.section.kind is not SectionKind.TEXT
        """Whether the section's text so far is only white space next to a mark."""
        self._trims_nothing = False
        """Whether the white space after the next mark is kept: the call that it ends is shown as text."""
        self._space: list[str] = []
        """White space held back because a mark may follow. A list: joining it with each token would be
        quadratic."""
        self._spans = spans
        self._read = 0
        """Characters of the answer up to the end of the current piece."""
        self._result_mark = "" if answer_format.tools is None else answer_format.tools.result_mark
        self._ended = False
        self.ended_calls = 0
        """Calls that were started and are over, malformed ones among them."""
        self.malformed_calls = 0

    @property
    def call_notation(self) -> str:
        return self._format.call_notation

    @property
    def in_reasoning(self) -> bool:
        section = self._splitter.section
        return section.kind is SectionKind.REASONING or section.in_reasoning

    @property
    def in_text(self) -> bool:
        return self._splitter.section.kind is SectionKind.TEXT

    @property
    def complete(self) -> bool:
        """Return whether the answer is complete, although the model may generate more: only one call was
        allowed, or it began to write a tool's result itself."""
        return self._ended or (self.ended_calls > 0 and self._calls.enough)

    def feed(self, text: str) -> Iterator[AnswerPiece | Heavy]:
        section = self._splitter.section
        for cut in self._splitter.feed(text):
            if isinstance(cut, str):
                self._read += len(cut)
                yield from self._piece(section, cut)
                if self._calls.ended and self._calls.enough:
                    # More calls may follow between the same marks.
                    self.ended_calls = self._calls.started
                    return
                continue
            self._read += len(cut.mark)
            yield from self._close(section, cut)
            self._ended = self._result_mark != "" and cut.mark == self._result_mark
            if self.complete:
                return
            section = self._splitter.section
            if section is cut.section:
                self._open(section, cut.mark)

    def finish(self, reason: FinishReason, *, cut_by_client: bool) -> Iterator[AnswerPiece | Heavy]:
        """End the answer. `cut_by_client`: a stop string ended it, perhaps inside a call."""
        section = self._splitter.section
        if rest := self._splitter.finish():
            self._read += len(rest)
            yield from self._piece(section, rest)
        if self._reader is not None:
            yield from self._finish_call(section, self._reader, reason, cut_by_client)
        elif self._space and section.kind is SectionKind.TEXT:
            yield self._text(self._take_space())

    def _finish_call(
        self, section: Section, reader: CallReader, reason: FinishReason, cut_by_client: bool
    ) -> Iterator[AnswerPiece | Heavy]:
        """End a call inside which the answer ends. The call is whole if the format has no end mark (or the
        end of the turn is one), and cut off if anything else ended the answer."""
        syntax = self._format.tools
        if reason is FinishReason.LENGTH and not section.in_reasoning and (syntax is None or syntax.end):
            return
        try:
            yield from self._end_call()
        except UnreadableCall as error:
            if section.in_reasoning:
                yield ReasoningDelta(self._call_mark + reader.raw)
            elif reason is not FinishReason.LENGTH and not cut_by_client:
                yield self._malformed(reader, error, "")

    def _open(self, section: Section, mark: str) -> None:
        if section.kind is SectionKind.CALL:
            self._reader = self._make_reader(section)
            self._call_mark = "".join(self._space) + mark
        self._edge, self._space = not self._trims_nothing, []
        self._trims_nothing = False

    def _make_reader(self, section: Section) -> CallReader:
        if section.call_name is not None:
            return ObjectReader(section.call_name, self._calls)
        syntax = self._format.tools
        assert syntax is not None, "a call in a format without calls"
        return call_reader(syntax, self._calls, in_reasoning=section.in_reasoning)

    def _close(self, section: Section, cut: Opened) -> Iterator[AnswerPiece | Heavy]:
        """End `section`. In reasoning, text that looked like a call may turn out not to be one."""
        if (reader := self._reader) is None:
            return
        if not section.in_reasoning:
            try:
                yield from self._end_call()
            except UnreadableCall as error:
                yield self._malformed(reader, error, cut.mark)
            return
        reasoning = self._format.reasoning
        if reasoning is not None and cut.mark == reasoning.end:
            self._reader, self._edge = None, False
            yield ReasoningDelta(self._call_mark + reader.raw)
            return
        try:
            yield from self._end_call()
        except UnreadableCall:
            self._reader, self._edge = None, False
            self._splitter.reopen(REASONING)
            yield ReasoningDelta(self._call_mark + reader.raw + cut.mark)

    def _end_call(self) -> Iterator[AnswerPiece | Heavy]:
        assert self._reader is not None
        if self._reader.weighs(None):
            yield HEAVY
        yield from self._reader.close()
        self._reader = None
        self.ended_calls = self._calls.started

    def _malformed(self, reader: CallReader, error: UnreadableCall, end: str) -> MalformedCall:
        self._reader, self._trims_nothing = None, True
        self.ended_calls = self._calls.started
        self.malformed_calls += 1
        written = reader.raw[error.read_to :] if error.read_to else self._call_mark + reader.raw
        return MalformedCall(written + end, error.index, error.rest)

    def _piece(self, section: Section, text: str) -> Iterator[AnswerPiece | Heavy]:
        match section.kind:
            case SectionKind.CALL:
                assert self._reader is not None, "text of a call outside a call"
                if self._reader.weighs(text):
                    yield HEAVY
                yield from self._reader.feed(text)
            case SectionKind.HIDDEN:
                pass
            case SectionKind.TEXT:
                if trimmed := self._trim(text):
                    yield self._text(trimmed)
            case SectionKind.REASONING:
                if trimmed := self._trim(text):
                    yield ReasoningDelta(trimmed)

    def _text(self, text: str) -> TextDelta:
        """Return the event for `text`, which ends where the held back white space begins."""
        if self._spans is None:
            return TextDelta(text)
        end = self._read - sum(map(len, self._space))
        return TextDelta(text, self._spans.take(end - len(text), end))

    def _trim(self, text: str) -> str:
        """Return `text` without white space after a mark; hold back trailing white space."""
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
