"""Compaction: a summary that stands for a conversation, written by the served model.

OpenAI's server returns it encrypted. Here it is the text behind a mark in the same member, so that it needs
no store: a server like this one that gets the item back reads it (`items.sealed_text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from api.answers.answer_blocks import Block, ReasoningBlock, TextBlock, ToolCallBlock
from api.answers.event_stream import Frame
from api.answers.whole_answer import WholeChoice
from api.dialects.responses.encode import Remember, ResponseEncoder
from api.dialects.responses.envelope import Envelope, status_of
from api.dialects.responses.items import compaction_item
from scheduler.events import AnswerPiece, Finished, Usage
from scheduler.request import GenerationRequest, Message

_ASK = (
    "Summarize this conversation, so that it can go on without the messages above: what was asked, what was"
    " decided and done, the facts, names, paths and results that matter, and what is still to do. Write the"
    " summary as plain text. Call no tools."
)
ASKED: Message = {"role": "user", "content": _ASK}
"""The last message. Everything before it is what the conversation's next request would begin with, tools
included, so that its prefix is cached."""
_KEPT_ROLES = ("user", "system", "developer")


def of_summary(request: GenerationRequest) -> GenerationRequest:
    """Return the request for a summary: free text, whatever form the client wants of answers."""
    return replace(request, structure=None, top_logprobs=None, stop=(), min_tokens=0)


def summary_of(blocks: Iterable[Block]) -> str:
    """Return the text that the model wrote; if it wrote none, what else it did."""
    blocks = list(blocks)
    texts = "".join([block.text for block in blocks if isinstance(block, TextBlock)]).strip()
    return texts or "\n".join(_written(block) for block in blocks).strip()


def _written(block: Block) -> str:
    match block:
        case TextBlock(text=text) | ReasoningBlock(text=text):
            return text
        case ToolCallBlock(name=name, arguments=arguments):
            return f"[{name} {arguments}]"


def item_of(public_id: str, blocks: Iterable[Block]) -> dict[str, str]:
    return compaction_item(f"cmp_{public_id.rpartition('_')[2]}0000", summary_of(blocks))


def compacted(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the items of a conversation that stay beside its summary: what its user wrote, its instructions
    and its tools."""
    for item in items:
        if item["type"] == "additional_tools" or (
            item["type"] == "message" and item.get("role") in _KEPT_ROLES
        ):
            yield item


class CompactionEncoder(ResponseEncoder):
    """Streams a response that is one compaction item."""

    def __init__(self, envelope: Envelope, remember: Remember) -> None:
        super().__init__(envelope, remember)
        self._choice = WholeChoice()

    def event(self, choice: int, event: AnswerPiece | Finished) -> Frame:
        if isinstance(event, Finished):
            self._end = event
        else:
            self._choice.add(event)
        return b""

    def finish(self, usage: Usage) -> Frame:
        assert self._end is not None, "the choice ends before the answer"
        self._blocks = self._choice.blocks
        self._items = [item_of(self._envelope.public_id, self._blocks)]
        place = {"output_index": 0, "item": self._items[0]}
        added = self._event("response.output_item.added", place)
        done = self._event("response.output_item.done", place)
        status = status_of(self._end.reason)
        return [added, done, *self._last(f"response.{status}", status, usage)]
