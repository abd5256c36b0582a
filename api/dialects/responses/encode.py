"""Encode stream events as events of OpenAI's responses API: each item is added, grows and is completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import Any, TypeGuard, assert_never

import msgspec

from api.answers import sse
from api.answers.answer_blocks import Block, ReasoningBlock, TextBlock, ToolCallBlock
from api.answers.block_sequence import BlockClosed, BlockOpened, BlockSequence, Grown, Step
from api.answers.errors import ApiError
from api.answers.event_stream import Frame
from api.answers.input_text import InputText, input_text
from api.bodies.json_pieces import json_pieces, json_text
from api.dialects.openai.encode import logprobs_list, marked
from api.dialects.responses.envelope import Envelope, ItemStatus, Status, named, part, status_of, summary_part
from api.dialects.responses.tools import CallKind
from scheduler.errors import SchedulerError
from scheduler.events import (
    AnswerPiece,
    Finished,
    FinishReason,
    Progress,
    Queued,
    TokenLogprobs,
    Usage,
)

_json = msgspec.json.Encoder()

Remember = Callable[[Status, bytes, list[Block]], None]
"""Called with the status and the JSON text of the finished response, before its last event is sent."""


class ResponseCancelled(SchedulerError):
    """The client cancelled the response."""

    code = "response_cancelled"


class ResponseEncoder:
    """Encodes one stream's events as bytes ready for the wire."""

    def __init__(self, envelope: Envelope, remember: Remember) -> None:
        self._envelope = envelope
        self._remember = remember
        self._sequence = BlockSequence()
        self._number = -1
        self._end: Finished | None = None
        self._blocks: list[Block] = []
        self._items: list[dict[str, Any]] = []
        self._item_id = b""
        self._call_kind: CallKind = "function"
        self._input: InputText | None = None
        """The text of the open call, if it is a custom tool's."""
        self._logprobs = BytesIO()
        """The JSON text of the log-probabilities in the open block: megabytes, which are never joined."""
        self.kept_bytes = 0
        """The size of all such texts, which are kept to the end of the response."""
        self.response = envelope.response("in_progress")
        """The response as it was last sent."""
        self._begun = False

    def so_far(self) -> dict[str, Any]:
        """Return the response with the items that are complete."""
        return self._envelope.response("in_progress" if self._begun else "queued", list(self._items))

    def start(self, prompt_tokens: int) -> Frame:
        events = ("response.created", "response.in_progress")
        return [part for name in events for part in self._parts(name, {"response": self.response})]

    def event(self, choice: int, event: AnswerPiece | Finished) -> Frame:
        if isinstance(event, Finished):
            self._end = event
            cut = event.reason is FinishReason.LENGTH
            return self._close("incomplete" if cut else "completed")
        self._begun = True
        return [part for step in self._sequence.add(event) for part in self._step(step, "completed")]

    def _close(self, status: ItemStatus) -> list[bytes | memoryview]:
        return [part for step in self._sequence.end() for part in self._step(step, status)]

    def _step(self, step: Step, status: ItemStatus) -> Iterable[bytes | memoryview]:
        match step:
            case BlockOpened(index=index, block=block):
                return (self._opened(index, block),)
            case Grown(index=index, block=block, text=text, logprobs=logprobs):
                return (self._delta(index, block, text, logprobs),)
            case BlockClosed(index=index, block=block):
                return self._closed(index, block, status)
            case _:
                assert_never(step)

    def _opened(self, index: int, block: Block) -> bytes:
        item = self._envelope.item(index, block, "in_progress")
        self._item_id = _json.encode(item["id"])
        added = self._event("response.output_item.added", {"output_index": index, "item": item})
        if isinstance(block, ToolCallBlock):
            self._call_kind = self._envelope.called(block.name).kind
            self._input = InputText() if self._call_kind == "custom" else None
            return added
        if self._is_summary(block):
            data = {**self._place(index, block), "part": summary_part(block)}
            return added + self._event("response.reasoning_summary_part.added", data)
        fields = {**self._place(index, block), "part": part(block)}
        return added + self._event("response.content_part.added", fields)

    def _is_summary(self, block: Block) -> TypeGuard[ReasoningBlock]:
        return isinstance(block, ReasoningBlock) and self._envelope.summarizes

    def _delta(self, index: int, block: Block, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        """Frame a delta from a template, because there is one for each piece."""
        match block:
            case TextBlock():
                encoded = b",".join(logprobs_list(logprobs).entries())
                if encoded:
                    self.kept_bytes += len(encoded)
                    self._logprobs.write(b"," if self._logprobs.tell() else b"[")
                    self._logprobs.write(encoded)
                name = b"response.output_text.delta"
                rest = b',"content_index":0,"logprobs":[' + encoded + b'],"delta":'
            case ReasoningBlock() if self._is_summary(block):
                name, rest = b"response.reasoning_summary_text.delta", b',"summary_index":0,"delta":'
            case ReasoningBlock():
                name, rest = b"response.reasoning_text.delta", b',"content_index":0,"delta":'
            case ToolCallBlock():
                if self._input is not None:
                    name, text = b"response.custom_tool_call_input.delta", self._input.add(text)
                elif self._call_kind == "function":
                    name = b"response.function_call_arguments.delta"
                else:
                    text = ""
                if not text:
                    return b""
                rest = b',"delta":'
            case _:
                assert_never(block)
        self._number += 1
        head = b'{"type":"%b","sequence_number":%d,"output_index":%d,"item_id":' % (name, self._number, index)
        return sse.named(name, head + self._item_id + rest + _json.encode(text) + b"}")

    def _closed(self, index: int, block: Block, status: ItemStatus) -> Iterator[bytes | memoryview]:
        """Yield the last events of a block in parts: its log-probabilities may be megabytes."""
        # The JSON text of the deltas is used again, because four more events contain it.
        self._logprobs.write(b"]" if self._logprobs.tell() else b"[]")
        logprobs = msgspec.Raw(self._logprobs.getvalue())
        self._logprobs = BytesIO()
        item = self._envelope.item(index, block, status, logprobs)
        self._blocks.append(block)
        self._items.append(item)
        place = self._place(index, block)
        match block:
            case TextBlock(text=text):
                data = {**place, "text": text, "logprobs": logprobs}
                yield from self._parts("response.output_text.done", data)
                yield from self._parts("response.content_part.done", {**place, "part": part(block, logprobs)})
            case ReasoningBlock(text=text) if self._is_summary(block):
                yield self._event("response.reasoning_summary_text.done", {**place, "text": text})
                data = {**place, "part": summary_part(block)}
                yield self._event("response.reasoning_summary_part.done", data)
            case ReasoningBlock(text=text):
                yield self._event("response.reasoning_text.done", {**place, "text": text})
                yield self._event("response.content_part.done", {**place, "part": part(block)})
            case ToolCallBlock():
                yield self._called(block, place)
            case _:
                assert_never(block)
        yield from self._parts("response.output_item.done", {"output_index": index, "item": item})

    def _called(self, block: ToolCallBlock, place: dict[str, Any]) -> bytes:
        """Return the end of a call's own events; the API's own tools have none."""
        if self._input is not None:
            rest = self._input.end()
            self._input = None
            last = b""
            if rest:
                delta = {**place, "delta": rest}
                last = self._event("response.custom_tool_call_input.delta", delta)
            text = {**place, "input": input_text(block.arguments)}
            return last + self._event("response.custom_tool_call_input.done", text)
        if self._call_kind != "function":
            return b""
        fields = {**place, **named(self._envelope.called(block.name)), "arguments": block.arguments}
        return self._event("response.function_call_arguments.done", fields)

    def _place(self, index: int, block: Block) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._envelope.item_id(index, block), "output_index": index}
        if isinstance(block, ToolCallBlock):
            return place
        return {**place, "summary_index" if self._is_summary(block) else "content_index": 0}

    def progress(self, progress: Progress) -> bytes:
        self._begun = not isinstance(progress, Queued)
        return sse.COMMENT

    def finish(self, usage: Usage) -> Frame:
        assert self._end is not None, "the choice ends before the answer"
        status = status_of(self._end.reason)
        return self._last(f"response.{status}", status, usage)

    def error(self, error: ApiError) -> Frame:
        """Store a cancelled response with its output so far, and a failed one if its client learns of it
        nowhere else."""
        if error.code == ResponseCancelled.code:
            return chain(self._close("incomplete"), self._last("response.incomplete", "cancelled", None))
        self.response = self._envelope.response("failed", self._items, error=error)
        if self._envelope.background:
            self._remember("failed", json_text(self.response), self._blocks)
        return list(self._parts("response.failed", {"response": self.response}))

    def _last(self, event: str, status: Status, usage: Usage | None) -> Iterator[bytes | memoryview]:
        """Yield the last event. What is stored of it is written meanwhile, piece by piece."""
        mark = {} if self._end is None else marked(self._end)
        self.response = {**self._envelope.response(status, self._items, usage), **mark}
        self._number += 1
        head = b'{"type":"%b","sequence_number":%d,"response":' % (event.encode(), self._number)
        yield sse.BEFORE_NAME + event.encode() + sse.BEFORE_DATA + head
        text = BytesIO()
        for piece in json_pieces(self.response):
            text.write(piece)
            yield piece
        self._remember(status, text.getvalue(), self._blocks)
        yield b"}" + sse.AFTER_DATA

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        return b"".join(self._parts(name, fields))

    def _parts(self, name: str, fields: dict[str, Any]) -> Iterator[bytes | memoryview]:
        """Return the text of an event in parts: what it repeats may be megabytes."""
        self._number += 1
        data = json_pieces({"type": name, "sequence_number": self._number, **fields})
        return chain((sse.BEFORE_NAME, name.encode(), sse.BEFORE_DATA), data, (sse.AFTER_DATA,))
