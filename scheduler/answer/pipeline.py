"""One answer from token ids to events: detokenizer, stop strings, sections.

It runs where the engine's output is routed, not where the client reads: a stop string must end the row in the
engine immediately, even if the client reads slowly. No stage waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from scheduler.answer.assembly import Assembly, SectionKind
from scheduler.answer.detokenizer import Detokenizer
from scheduler.answer.prompt_logprobs import PromptLogprobs
from scheduler.answer.stop_strings import StopStrings, WantedStrings
from scheduler.answer.text_stream import Heavy
from scheduler.answer.token_spans import TokenSpans
from scheduler.events import AnswerPiece, CallFault, FinishReason, TextDelta, TokenLogprobs
from scheduler.shared.messages import LogprobsOut
from scheduler.shared.thinking import ThinkingLimit


class AnswerPipeline:
    """Feed it the tokens of the answer, without the end-of-sequence token.

    Without an `assembly` all text is answer text. No stop string ends within the first `min_tokens` tokens,
    nor in reasoning: that would leave an answer without text. `spans` is given, and shared with the assembly,
    only if pieces of text carry their tokens' log-probabilities.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] | WantedStrings,
        assembly: Assembly | None = None,
        *,
        includes_stop: bool = False,
        min_tokens: int = 0,
        spans: TokenSpans | None = None,
        thinking: ThinkingLimit | None = None,
        prompt: PromptLogprobs | None = None,
    ) -> None:
        """`stop` is WantedStrings if the choices of a request share them. With `thinking`, reasoning tokens
        are counted by token ids, as the engine counts them; without it, by the sections of the text,
        including the end mark."""
        self._detokenizer = detokenizer
        wanted = stop if isinstance(stop, WantedStrings) else WantedStrings(stop)
        self._stop_strings = StopStrings(wanted, included=includes_stop)
        self._marks = wanted.marks
        self._assembly = assembly
        self._unstoppable_tokens = min_tokens
        self._may_end = min_tokens == 0
        """Whether the latest token may complete a stop string."""
        self._spans = spans
        self.prompt = prompt
        """The prompt's log-probabilities, where they are requested and no other choice has them."""
        self._read = 0
        """Characters passed on; counted only without an assembly, which has a count of its own."""
        self._thinking = thinking
        self._section_tokens = 0
        """Tokens that began inside reasoning. Only counted without `thinking`."""

    @property
    def reasoning_tokens(self) -> int:
        return self._section_tokens if self._thinking is None else self._thinking.reasoning_tokens

    @property
    def stopped(self) -> bool:
        """Return whether the answer is complete, although the engine may still generate."""
        return self.stop_string is not None or (self._assembly is not None and self._assembly.complete)

    @property
    def call_faults(self) -> Counter[CallFault]:
        """Return why tool calls that the model wrote cannot be read, and how many."""
        return Counter() if self._assembly is None else self._assembly.calls.faults

    @property
    def call_notation(self) -> str:
        """Return the syntax of its tool calls, or an empty string if it can have none."""
        return "" if self._assembly is None else self._assembly.format.call_notation

    @property
    def stop_string(self) -> str | None:
        return self._stop_strings.matched

    def read(self, token_id: int, logprobs: LogprobsOut | None = None) -> Iterator[AnswerPiece | Heavy]:
        """Yield the pieces that the next token completes, and HEAVY before work for a thread. `logprobs`
        is given with `spans`. Exhaust the iterator before the next call."""
        opens, text = not self._detokenizer.begun, self._detokenizer.feed(token_id)
        if self._spans is not None:
            assert logprobs is not None, "a token without its log-probability"
            self._spans.add(token_id, logprobs, len(text), opens=opens)
        if self._thinking is not None:
            self._thinking.accept(token_id)
        elif self._in_reasoning:
            self._section_tokens += 1
        self._may_end = self._unstoppable_tokens == 0 and not self._in_reasoning
        self._unstoppable_tokens = max(0, self._unstoppable_tokens - 1)
        # For a token without a text that a stop string names.
        text += self._marks.get(token_id, "")
        if text and (certain := self._stop_strings.feed(text, may_end=self._may_end)):
            yield from self._pieces(certain)

    def read_end(self, token_id: int) -> Iterator[AnswerPiece | Heavy]:
        """Yield the pieces that the token completes with which the engine ended the answer. It is no text,
        but a stop string may name it."""
        mark = self._marks.get(token_id)
        if mark is None or self.stopped:
            return
        if certain := self._stop_strings.feed(mark, may_end=not self._in_reasoning):
            yield from self._pieces(certain)

    def end(self, reason: FinishReason) -> Iterator[AnswerPiece | Heavy]:
        """Yield the rest at the end of the answer. A stop string may still match in it."""
        if not self.stopped:
            rest = self._detokenizer.finish()
            if self._spans is not None:
                self._spans.add_text(len(rest))
            text = self._stop_strings.feed(rest, may_end=self._may_end)
            if self.stop_string is None:
                text += self._stop_strings.finish()
            if text:
                yield from self._pieces(text)
        if self._assembly is not None and not self._assembly.complete:
            yield from self._assembly.finish(reason, cut_by_client=self.stop_string is not None)
        in_text = not self.stopped and (self._assembly is None or self._assembly.section is SectionKind.TEXT)
        if in_text and self._spans is not None and (last := self._spans.take_waiting()):
            yield TextDelta("", last)

    def end_token(self, token_id: int, logprobs: LogprobsOut) -> TokenLogprobs | None:
        """Return the token that ended the answer, which is not part of its text; None without `spans`."""
        return None if self._spans is None else self._spans.spelled(token_id, logprobs)

    def finish_reason(self, by_engine: FinishReason) -> FinishReason:
        """Return why the answer ended; call it after `end`. `by_engine`: why the row ended."""
        if self.stop_string is not None:
            return FinishReason.STOP
        if self._assembly is None or not self._assembly.calls.ended:
            return by_engine
        ended = self._assembly.complete or by_engine is FinishReason.STOP
        return FinishReason.TOOL_CALLS if ended else by_engine

    @property
    def _in_reasoning(self) -> bool:
        return self._assembly is not None and self._assembly.section is SectionKind.REASONING

    def _pieces(self, text: str) -> Iterator[AnswerPiece | Heavy]:
        if self._assembly is not None:
            yield from self._assembly.feed(text)
        elif self._spans is None:
            yield TextDelta(text)
        else:
            start, self._read = self._read, self._read + len(text)
            yield TextDelta(text, self._spans.take(start, self._read))
