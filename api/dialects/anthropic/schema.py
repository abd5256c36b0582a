"""The accepted bodies of Anthropic's messages API. Unsupported fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly, Refused, WithoutEffect
from api.dialects.anthropic.content import CACHE, CacheControl, InputMessage, Text, as_blocks
from api.dialects.anthropic.foreign import name_ignored
from api.dialects.openai.bound import BoundFields
from api.dialects.openai.structured import StructuredFields
from api.dialects.openai.thinking import ThinkingFields
from api.dialects.openai.tools import STRICT

MAX_TOOLS = 1024
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256

_BOOKKEEPING = "used only for the provider's own accounting"


class Metadata(Body):
    user_id: str | None = None


class CustomTool(Body):
    """A tool that the client runs. Anthropic's own tools have other types: those that its server would run
    are left out of the prompt, and named; those that the client would run are refused by type."""

    type: Annotated[
        Literal["custom"] | None,
        Refused("only tools that the client runs are supported", neutral=("custom",)),
    ] = None
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: JsonObject
    cache_control: Annotated[CacheControl | None, CACHE] = None
    strict: Annotated[StrictBool | None, STRICT] = None
    eager_input_streaming: Annotated[
        StrictBool | None, WithoutEffect("arguments always stream as soon as the model's syntax allows")
    ] = None
    defer_loading: Annotated[
        StrictBool | None,
        WithoutEffect("the server has no tool search: every tool is offered at once"),
    ] = None
    input_examples: Annotated[
        Listed[Any] | None, Refused("chat templates have no field for them: put them into the description")
    ] = None
    allowed_callers: Annotated[
        Listed[str] | None, Refused("only the model calls tools", neutral=(["direct"],))
    ] = None


_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")


def _without_hosted(tools: Any) -> Any:
    """Leave out what only Anthropic's server runs: the offer does not require its use."""
    if not isinstance(tools, list):
        return tools
    kept = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind.startswith(_HOSTED):
            name_ignored(tool, kind)
        else:
            kept.append(tool)
    return kept


class ToolChoice(Body):
    type: Annotated[
        Literal["auto", "none", "any", "tool"],
        Partly("a required call needs a dialect of calls that a grammar can hold: all but muse_spark"),
    ]
    name: str | None = None
    disable_parallel_tool_use: StrictBool | None = None

    @model_validator(mode="after")
    def _names_one_tool(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("type 'tool' needs a name, and no other type takes one")
        return self


class ClearThinking(Body):
    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Body):
    """Accepted with edits that remove nothing, which Claude Code sends."""

    edits: Annotated[list[ClearThinking], Field(max_length=16, fail_fast=True)]


class CountTokensRequest(ThinkingFields, StructuredFields):
    """`POST /v1/messages/count_tokens`, and the fields that `POST /v1/messages` shares with it."""

    bulk = ("messages", "tools")

    model: str | None = None
    messages: Listed[InputMessage] = Field(min_length=1)
    system: Annotated[
        Listed[Text] | None, BeforeValidator(as_blocks, json_schema_input_type=str | list[Text] | None)
    ] = None
    tools: Annotated[
        Annotated[list[CustomTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        BeforeValidator(_without_hosted),
    ] = None
    tool_choice: ToolChoice | None = None
    cache_control: Annotated[CacheControl | None, CACHE] = None
    context_management: Annotated[
        ContextManagement | None, WithoutEffect("accepts only edits that remove nothing")
    ] = None
    speed: Annotated[str | None, Refused("the server has one speed", neutral=("standard",))] = None
    mcp_servers: Annotated[
        Listed[Any] | None, Refused("the server connects to no MCP servers", neutral=([],))
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

    max_tokens: int = Field(ge=1)
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
    metadata: Annotated[Metadata | None, WithoutEffect(_BOOKKEEPING)] = None
    service_tier: Annotated[
        Literal["auto", "standard_only"] | None, WithoutEffect("one engine has one service tier")
    ] = None
    container: Annotated[Any, Refused("the server runs no code")] = None
    inference_geo: Annotated[Any, Refused("the server has one location")] = None
    diagnostics: Annotated[Any, WithoutEffect("the usage reports cached tokens")] = None
    user_profile_id: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    workspace_id: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
