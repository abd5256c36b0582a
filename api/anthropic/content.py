"""Messages as Anthropic's clients write them, and as they send this server's answers back: lists of
blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field

from api.fields import JsonObject, Listed, Partly, Refused, WithoutEffect
from api.openai.messages import Body

_AUTOMATIC_CACHE = "what prompts have in common is found without it"


class CacheControl(Body):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class _Block(Body):
    cache_control: Annotated[CacheControl | None, WithoutEffect(_AUTOMATIC_CACHE)] = None


class Text(_Block):
    type: Literal["text"]
    text: str
    citations: Annotated[Listed[Any] | None, Refused("sources are not cited", neutral=([],))] = None


class Thinking(Body):
    """The model's reasoning, sent back. This server's signature signs nothing, so none is checked."""

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, WithoutEffect("thoughts are not signed")] = ""


class RedactedThinking(Body):
    """Another provider's encrypted reasoning from an earlier turn; no other server can read it."""

    type: Literal["redacted_thinking"]
    data: Annotated[str, WithoutEffect("only its provider can read it")]


class ToolUse(_Block):
    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: JsonObject
    caller: Annotated[
        JsonObject | None, Refused("the model is the only caller", neutral=({"type": "direct"},))
    ] = None


def as_blocks(value: Any) -> Any:
    """Accept a string as one text block."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


_Texts = Annotated[Listed[Text], BeforeValidator(as_blocks, json_schema_input_type=str | list[Text])]


class ToolResult(_Block):
    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: _Texts | None = None
    is_error: Annotated[bool | None, WithoutEffect("templates have no place for it; the text says it")] = None

    @property
    def text(self) -> str:
        return joined(block.text for block in self.content or ())


ContentBlock: TypeAlias = Text | Thinking | RedactedThinking | ToolUse | ToolResult
_TaggedBlock = Annotated[ContentBlock, Discriminator("type")]


class InputMessage(Body):
    """One message. Consecutive messages of one role count as one turn, as in Anthropic's API."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Listed[_TaggedBlock],
        BeforeValidator(as_blocks, json_schema_input_type=str | list[_TaggedBlock]),
        Partly("text; models here see no pictures"),
    ]

    @property
    def is_prefill(self) -> bool:
        """Whether an answer can continue this message."""
        return not any(isinstance(block, ToolUse) for block in self.content) and bool(texts(self.content))


def texts(blocks: Sequence[ContentBlock]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, Text)]


def joined(parts: Any) -> str:
    """Join blocks as paragraphs: clients do not end them with a line break."""
    return "\n\n".join(parts)
