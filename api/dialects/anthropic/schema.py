"""The accepted bodies of Anthropic's messages API. Unsupported fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from api.bodies.body import Body
from api.bodies.fields import Listed, Partly, WithoutEffect
from api.dialects.anthropic.content import CACHE, CacheControl, InputMessage, Text, as_blocks
from api.dialects.anthropic.tools import CustomTool, as_offered
from api.dialects.foreign import name_unread
from api.dialects.openai.schema import BOOKKEEPING
from api.dialects.openai.structured import StructuredFields
from api.dialects.openai.thinking import ThinkingFields
from api.dialects.openai.tools import MAX_TOOLS
from api.dialects.spellings import BoundFields

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256


class ToolChoice(Body):
    type: Annotated[
        Literal["auto", "none", "any", "tool"],
        Partly("a required call needs a notation of calls that a grammar can hold: all but muse_spark"),
    ]
    name: str | None = None
    disable_parallel_tool_use: StrictBool | None = None

    @model_validator(mode="after")
    def _names_one_tool(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("type 'tool' needs a name, and no other type takes one")
        return self


def _with_named_edits(value: Any) -> Any:
    """Name the edits of the context that are not made: those that remove something."""
    edits = value.get("edits") if isinstance(value, dict) else None
    for edit in edits if isinstance(edits, list) else ():
        if isinstance(edit, dict) and edit.get("keep") != "all":
            name_unread(edit, edit.get("type"))
    return value


class CountTokensRequest(ThinkingFields, StructuredFields):
    """`POST /v1/messages/count_tokens`, and the fields that `POST /v1/messages` shares with it."""

    bulk = ("messages", "tools", "system")

    model: str | None = None
    messages: Listed[InputMessage] = Field(min_length=1)
    system: Annotated[
        Listed[Text] | None, BeforeValidator(as_blocks, json_schema_input_type=str | list[Text] | None)
    ] = None
    tools: Annotated[
        Annotated[list[CustomTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        BeforeValidator(as_offered),
    ] = None
    tool_choice: ToolChoice | None = None
    cache_control: Annotated[CacheControl | None, CACHE] = None
    context_management: Annotated[
        Any,
        BeforeValidator(_with_named_edits),
        WithoutEffect("edits that remove something are named, and not made"),
    ] = None

    @model_validator(mode="after")
    def _ends_with_what_can_be_answered(self) -> CountTokensRequest:
        last = self.messages[-1]
        if last.role == "assistant" and not last.is_prefill:
            raise ValueError(
                "messages: a last message of the assistant's must be text, which the answer continues"
            )
        return self


class MessagesRequest(BoundFields, CountTokensRequest):
    """`POST /v1/messages`."""

    max_tokens: int = Field(ge=0)
    stream: StrictBool = False
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]],
            Field(max_length=MAX_STOPS, fail_fast=True),
        ]
        | None
    ) = None
    metadata: Annotated[Any, WithoutEffect(BOOKKEEPING)] = None
    service_tier: Annotated[
        Literal["auto", "standard_only"] | None, WithoutEffect("one engine has one service tier")
    ] = None
    diagnostics: Annotated[Any, WithoutEffect("the usage reports cached tokens")] = None
    user_profile_id: Annotated[str | None, WithoutEffect(BOOKKEEPING)] = None
    workspace_id: Annotated[str | None, WithoutEffect(BOOKKEEPING)] = None
