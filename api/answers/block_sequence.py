"""An answer's pieces as blocks that never overlap: each opens, grows and closes before the next opens.

For dialects whose streams consist of blocks (Anthropic's messages, OpenAI's responses), and whole answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from api.answers.answer_blocks import Block, ReasoningBlock, TextBlock, ToolCallBlock
from scheduler.events import (
    AnswerPiece,
    MalformedCall,
    ReasoningDelta,
    TextDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStarted,
)


@dataclass(frozen=True, slots=True)
class BlockOpened:
    index: int
    block: Block
    """Still empty."""


@dataclass(frozen=True, slots=True)
class Grown:
    index: int
    block: Block
    text: str
    """The piece's text; the block itself is filled when it closes."""
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockClosed:
    index: int
    block: Block


Step: TypeAlias = BlockOpened | Grown | BlockClosed


class BlockSequence:
    """Splits one answer into blocks. White space after a block is held back until other text follows: a block
    of white space only is not sent, because Anthropic's API would refuse it when a client sends it back."""

    def __init__(self, *, keeps_space: bool = False) -> None:
        """`keeps_space`: nothing is held back."""
        self._keeps_space = keeps_space
        self._block: Block | None = None
        self._count = 0
        self._parts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._space = ""
        self._space_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether no block was opened."""
        return not self._count

    def add(self, piece: AnswerPiece) -> Iterator[Step]:
        match piece:
            case TextDelta(text=text, logprobs=logprobs):
                yield from self._add_text(text, logprobs)
            case ReasoningDelta(text=text):
                if self._space or not isinstance(self._block, ReasoningBlock):
                    yield from self._open(ReasoningBlock(""))
                yield self._grow(text)
            case ToolCallStarted(call_id=call_id, name=name):
                yield from self._open(ToolCallBlock(call_id, name))
            case ToolCallArguments(text=text):
                assert isinstance(self._block, ToolCallBlock), "arguments of no call"
                yield self._grow(text)
            case MalformedCall(text=text, index=None):
                yield from self._add_text(text, ())
            case MalformedCall(text=text, rest=rest):
                assert isinstance(self._block, ToolCallBlock), "a failure of no call"
                self._block.malformed = text
                if rest:
                    yield self._grow(rest)
            case _:
                assert_never(piece)

    def end(self) -> Iterator[BlockClosed]:
        """Close the open block at the end of the answer."""
        if (block := self._block) is None:
            return
        content = "".join(self._parts)
        if isinstance(block, ToolCallBlock):
            block.arguments = content
        else:
            block.text = content
        if isinstance(block, TextBlock):
            block.logprobs = self._logprobs
        self._block, self._logprobs = None, []
        self._parts.clear()
        self._space, self._space_logprobs = "", ()
        yield BlockClosed(self._count - 1, block)

    def _add_text(self, text: str, logprobs: tuple[TokenLogprobs, ...]) -> Iterator[Step]:
        if not isinstance(self._block, TextBlock):
            text, logprobs = self._space + text, self._space_logprobs + logprobs
            if self._count and not (self._keeps_space or text.strip()):
                self._space, self._space_logprobs = text, logprobs
                return
            yield from self._open(TextBlock(""))
        self._logprobs.extend(logprobs)
        yield self._grow(text, logprobs)

    def _open(self, block: Block) -> Iterator[Step]:
        yield from self.end()
        self._block, self._space, self._space_logprobs = block, "", ()
        self._count += 1
        yield BlockOpened(self._count - 1, block)

    def _grow(self, text: str, logprobs: tuple[TokenLogprobs, ...] = ()) -> Grown:
        assert self._block is not None, "it was opened above"
        self._parts.append(text)
        return Grown(self._count - 1, self._block, text, logprobs)
