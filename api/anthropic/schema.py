"""The accepted bodies of Anthropic's messages API. Unsupported fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, model_validator

from api.anthropic.content import CacheControl, InputMessage, Text, as_blocks
from api.fields import JsonObject, Listed, Partly, Refused, WithoutEffect
from api.openai.messages import Body
from api.openai.schema import MAX_THINKING_TOKENS
from api.openai.tools import STRICT

MAX_TOOLS = 1024
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256

_BOOKKEEPING = "the provider's own bookkeeping"
_AUTOMATIC_CACHE = "what prompts have in common is found without it"


class Metadata(Body):
    user_id: str | None = None


class CustomTool(Body):
    """A tool that the client runs. Anthropic's server-side tools have other types, and are refused by
    type."""

    type: Annotated[
        Literal["custom"] | None,
        Refused("only tools that the client runs are supported", neutral=("custom",)),
    ] = None
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: JsonObject
    cache_control: Annotated[CacheControl | None, WithoutEffect(_AUTOMATIC_CACHE)] = None
    strict: Annotated[StrictBool | None, STRICT] = None
    eager_input_streaming: Annotated[
        StrictBool | None, WithoutEffect("arguments stream as the model's syntax lets them")
    ] = None
    defer_loading: Annotated[
        StrictBool | None,
        Refused("there is no tool search; send the tools that are wanted", neutral=(False,)),
    ] = None
    input_examples: Annotated[
        Listed[Any] | None, Refused("templates have no place for them; put them in the description")
    ] = None
    allowed_callers: Annotated[
        Listed[str] | None, Refused("the model is the only caller", neutral=(["direct"],))
    ] = None


class ToolChoice(Body):
    type: Annotated[
        Literal["auto", "none", "any", "tool"],
        Partly("that a tool must be called: where the model writes its calls as JSON"),
    ]
    name: str | None = None
    disable_parallel_tool_use: StrictBool | None = None

    @model_validator(mode="after")
    def _names_one_tool(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a name goes with the type 'tool', and with no other")
        return self


_Display = Literal["summarized", "omitted"] | None


class ThinkingEnabled(Body):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1, le=MAX_THINKING_TOKENS)
    display: _Display = None


class ThinkingAdaptive(Body):
    type: Literal["adaptive"]
    display: _Display = None


class ThinkingDisabled(Body):
    type: Literal["disabled"]


Thinking = Annotated[ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, Discriminator("type")]


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ClearThinking(Body):
    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Body):
    """Accepted with edits that remove nothing, which Claude Code sends."""

    edits: Annotated[list[ClearThinking], Field(max_length=16, fail_fast=True)]


class CountTokensRequest(Body):
    """`POST /v1/messages/count_tokens`, and the fields that `POST /v1/messages` shares with it."""

    model: str | None = None
    messages: Listed[InputMessage] = Field(min_length=1)
    system: Annotated[
        Listed[Text] | None, BeforeValidator(as_blocks, json_schema_input_type=str | list[Text] | None)
    ] = None
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Annotated[CacheControl | None, WithoutEffect(_AUTOMATIC_CACHE)] = None
    context_management: Annotated[
        ContextManagement | None, WithoutEffect("only the edits that remove nothing are accepted")
    ] = None
    speed: Annotated[str | None, Refused("there is one speed", neutral=("standard",))] = None
    mcp_servers: Annotated[Listed[Any] | None, Refused("this server calls no others", neutral=([],))] = None

    def release(self) -> None:
        self.messages.clear()

    @model_validator(mode="after")
    def _ends_with_what_can_be_answered(self) -> CountTokensRequest:
        last = self.messages[-1]
        if last.role == "assistant" and not last.is_prefill:
            raise ValueError("messages: the last message is the assistant's; only its text can be continued")
        return self


class MessagesRequest(CountTokensRequest):
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
    service_tier: Annotated[Literal["auto", "standard_only"] | None, WithoutEffect("there is one tier")] = (
        None
    )
    container: Annotated[Any, Refused("nothing is run here")] = None
    inference_geo: Annotated[Any, Refused("this server is where it is")] = None
    diagnostics: Annotated[Any, WithoutEffect("what came from the cache is in the usage")] = None
    user_profile_id: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    workspace_id: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
