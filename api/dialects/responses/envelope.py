"""The response object: the request's parameters and the answer so far.

What it repeats from the body may be megabytes, which each of a stream's events repeats: it is encoded once,
where the body is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

import msgspec

from api.answers.answer_blocks import Block, ReasoningBlock, TextBlock, ToolCallBlock
from api.answers.errors import ApiError
from api.answers.input_text import input_text
from api.bodies.json_pieces import JsonList
from api.dialects.openai.encode import logprobs_list
from api.dialects.openai.tools import BY_TYPE, AllowedTools, NamedTool
from api.dialects.responses.items import sealed
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.tools import Called, CallKind, action, given, sent
from api.dialects.spellings import token_bound_of
from scheduler.events import FinishReason, Usage
from scheduler.request import Sampling

ItemStatus = Literal["queued", "in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


_json = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Envelope:
    """What stays the same while the answer grows."""

    public_id: str
    created_at: int
    model: str
    background: bool
    echo: Mapping[str, msgspec.Raw]
    """What it repeats from its body: JSON text by the name of its field."""
    by_name: Mapping[str, Called]
    """How the client knows each tool, by the model's name of it."""
    shows_reasoning: bool
    summarizes: bool
    """Whether reasoning is given as its own summary."""

    @property
    def bytes(self) -> int:
        return sum(memoryview(text).nbytes for text in self.echo.values())

    @classmethod
    def of(
        cls,
        body: CreateResponse,
        public_id: str,
        model: str,
        sampling: Sampling,
        called: Mapping[str, Called],
    ) -> Envelope:
        """Make it, in a worker thread where the body is not small. `sampling`: the answer's, with defaults
        for what the body omits."""
        reasoning = body.reasoning
        fields = {
            "instructions": body.instructions,
            "max_output_tokens": token_bound_of(body),
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {
                "effort": None if reasoning is None else reasoning.effort,
                "summary": None if reasoning is None else reasoning.summary,
            },
            "store": body.remembers,
            "temperature": sampling.temperature,
            "text": {"format": _text_format(body)},
            "tool_choice": _tool_choice(body),
            "tools": [sent(tool) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "user": body.user,
        }
        echo = {name: msgspec.Raw(_json.encode(value)) for name, value in fields.items()}
        ours = (public_id, int(time.time()), model, body.background is True)
        return cls(*ours, echo, called, body.shows_reasoning, body.summarizes)

    def response(
        self,
        status: Status,
        output: Sequence[dict[str, Any]] = (),
        usage: Usage | None = None,
        error: ApiError | None = None,
    ) -> dict[str, Any]:
        over = status not in ("queued", "in_progress", "failed")
        return {
            "id": self.public_id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": self.background,
            "error": None if error is None else _error_object(error),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": list(output),
            "service_tier": "default",
            "truncation": "disabled",
            "usage": usage_object(usage) if over and usage is not None else None,
            **self.echo,
        }

    def item(
        self, index: int, block: Block, status: ItemStatus, logprobs: LogprobsJson | None = None
    ) -> dict[str, Any]:
        """Return a block as an output item, with empty content until the block is complete. `logprobs`: the
        JSON text of a text's log-probabilities, if there is one already."""
        item_id = self.item_id(index, block)
        over = status != "in_progress"
        match block:
            case TextBlock():
                content = [part(block, logprobs)] if over else []
                message = {"role": "assistant", "status": status, "content": content}
                return {"id": item_id, "type": "message", **message}
            case ReasoningBlock():
                summary = [summary_part(block)] if over and self.summarizes else []
                content = [part(block)] if over and self.shows_reasoning else []
                thought = {"summary": summary, "content": content, "status": status}
                own = sealed(block.text) if over else None
                return {"id": item_id, "type": "reasoning", **thought, "encrypted_content": own}
            case ToolCallBlock():
                return {"id": item_id, **self._call(block), "status": status}
            case _:
                assert_never(block)

    def _call(self, block: ToolCallBlock) -> dict[str, Any]:
        """Return the members of a call's item that say what is called, with what."""
        arguments = block.arguments
        match (called := self.called(block.name)).kind:
            case "function":
                call = {"call_id": block.call_id, **named(called), "arguments": arguments}
                return {"type": "function_call", **call}
            case "custom":
                call = {"call_id": block.call_id, **named(called), "input": input_text(arguments)}
                return {"type": "custom_tool_call", **call}
            case "local_shell" | "shell" as kind:
                return {"type": f"{kind}_call", "call_id": block.call_id, "action": action(kind, arguments)}
            case "apply_patch" as kind:
                operation = action(kind, arguments)
                return {"type": "apply_patch_call", "call_id": block.call_id, "operation": operation}

    def called(self, offered_name: str) -> Called:
        """Return how the client knows the tool that the model calls so."""
        return self.by_name.get(offered_name) or Called("function", offered_name)

    def item_id(self, index: int, block: Block) -> str:
        """Derive the item's id from the response's id and the item's index."""
        kinds: dict[type[Block], str] = {TextBlock: "msg", ReasoningBlock: "rs"}
        kind = (
            _CALL_IDS[self.called(block.name).kind]
            if isinstance(block, ToolCallBlock)
            else kinds[type(block)]
        )
        return f"{kind}_{self.public_id.rpartition('_')[2]}{index:04}"

    def items(self, blocks: Sequence[Block], reason: FinishReason) -> list[dict[str, Any]]:
        """Return the items of a whole answer. If max_output_tokens ended it, its last item is incomplete."""
        last = len(blocks) - 1
        cut = reason is FinishReason.LENGTH
        return [
            self.item(index, block, "incomplete" if cut and index == last else "completed")
            for index, block in enumerate(blocks)
        ]


_CALL_IDS: dict[CallKind, str] = {
    "function": "fc",
    "custom": "ctc",
    "local_shell": "lsh",
    "shell": "sh",
    "apply_patch": "apc",
}


def named(called: Called) -> dict[str, str]:
    """Return the members that name a called tool."""
    inside = {} if called.namespace is None else {"namespace": called.namespace}
    return {**inside, "name": called.name}


def _error_object(error: ApiError) -> dict[str, str]:
    """Return the error with one of the API's own codes: Codex sends the request again for all others but
    `invalid_prompt`."""
    code = "server_error" if error.status >= 500 else "invalid_prompt"
    return {"code": code, "message": error.sendable_message}


def status_of(reason: FinishReason) -> Status:
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


LogprobsJson: TypeAlias = JsonList | msgspec.Raw


def part(block: TextBlock | ReasoningBlock, logprobs: LogprobsJson | None = None) -> dict[str, Any]:
    if isinstance(block, ReasoningBlock):
        return {"type": "reasoning_text", "text": block.text}
    given = logprobs_list(block.logprobs) if logprobs is None else logprobs
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": given}


def summary_part(block: ReasoningBlock) -> dict[str, Any]:
    return {"type": "summary_text", "text": block.text}


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _text_format(body: CreateResponse) -> dict[str, Any]:
    asked = None if body.text is None else body.text.format
    return {"type": "text"} if asked is None else given(asked)


def _tool_choice(body: CreateResponse) -> Any:
    match body.tool_choice:
        case NamedTool(type=kind) if kind in BY_TYPE:
            return {"type": kind}
        case NamedTool() | AllowedTools() as choice:
            return choice.model_dump()
        case choice:
            return choice or "auto"
