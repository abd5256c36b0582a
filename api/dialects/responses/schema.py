"""The accepted body of OpenAI's responses API. Unsupported fields are refused by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, assert_never

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, model_validator

from api.bodies.body import Body
from api.bodies.fields import AtMost, JsonObject, Listed, Partly, Refused, WithoutEffect
from api.dialects.openai.bound import BoundFields
from api.dialects.openai.schema import DecodingFields
from api.dialects.openai.structured import StructuredFields
from api.dialects.openai.thinking import ThinkingFields
from api.dialects.openai.tools import CHOICE, MAX_TOOLS, STRICT, Choice
from api.dialects.responses.items import FunctionCall, TaggedItem, as_items, qualified
from scheduler.request import MAX_TOP_LOGPROBS, Tool

_BOOKKEEPING = "used only for the provider's own accounting"
_NO_SEARCH = "the server has no web search, and does not offer it to the model"


class FunctionTool(Body):
    """A function that the client runs."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: Annotated[StrictBool | None, STRICT] = None
    defer_loading: Annotated[
        StrictBool | None,
        Refused("the server has no tool search: send the tools to offer", neutral=(False,)),
    ] = None
    allowed_callers: Annotated[
        Listed[str] | None, Refused("only the model calls tools", neutral=(["direct"],))
    ] = None
    output_schema: Annotated[JsonObject | None, WithoutEffect("chat templates have no field for it")] = None

    def neutral(self, place: str) -> Tool:
        """Return the neutral form. `place` is the path in the body, for errors."""
        return Tool(
            self.name,
            self.description or "",
            self.parameters or {},
            bool(self.strict),
            f"{place}.parameters",
        )


class NamespaceTool(Body):
    """Functions under a common name (Codex groups its own so). Chat templates know functions only, so the
    prompt offers each under both names joined, and a call of it is reported with the two."""

    type: Literal["namespace"]
    name: str = Field(min_length=1, max_length=256)
    description: str
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)]

    def neutral(self, place: str) -> list[Tool]:
        offered = (tool.neutral(f"{place}.tools.{i}") for i, tool in enumerate(self.tools))
        return [
            replace(
                tool,
                name=qualified(self.name, tool.name),
                description="\n\n".join(filter(None, (self.description, tool.description))),
            )
            for tool in offered
        ]


class WebSearch(Body):
    """OpenAI's own search, which Codex offers to every model by default. The offer does not require its use,
    so the server accepts it and leaves it out of the prompt."""

    type: Literal["web_search", "web_search_2025_08_26", "web_search_preview"]
    external_web_access: Annotated[StrictBool | None, WithoutEffect(_NO_SEARCH)] = None
    filters: Annotated[JsonObject | None, WithoutEffect(_NO_SEARCH)] = None
    search_context_size: Annotated[Literal["low", "medium", "high"] | None, WithoutEffect(_NO_SEARCH)] = None
    user_location: Annotated[JsonObject | None, WithoutEffect(_NO_SEARCH)] = None


AnyTool: TypeAlias = Annotated[FunctionTool | NamespaceTool | WebSearch, Discriminator("type")]


class StreamOptions(Body):
    include_obfuscation: Annotated[
        StrictBool | None, Refused("the server does not pad stream events", neutral=(False,))
    ] = None


class CreateResponse(BoundFields, ThinkingFields, StructuredFields, DecodingFields):
    """`POST /v1/responses`."""

    bulk = ("input",)

    model: str | None = None
    input: Annotated[
        Listed[TaggedItem],
        BeforeValidator(as_items, json_schema_input_type=str | list[TaggedItem]),
    ] = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: StrictBool | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[
        Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        Partly("functions; the server runs no tools of its own"),
    ] = None
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: StrictBool | None = None
    metadata: Annotated[dict[str, str], AtMost(16)] | None = None

    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    prompt_logprobs: Annotated[int | None, Refused("use /v1/completions or /v1/chat/completions")] = None
    include: Annotated[
        Listed[Any] | None,
        Partly("`message.output_text.logprobs` adds log-probabilities; others have no effect"),
    ] = None
    user: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    safety_identifier: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    client_metadata: Annotated[JsonObject | None, WithoutEffect(_BOOKKEEPING)] = None
    service_tier: Annotated[
        Literal["auto", "default"] | None, WithoutEffect("one engine has one service tier")
    ] = None
    prompt_cache_key: Annotated[
        str | None, WithoutEffect("the prefix cache finds shared prefixes by their tokens")
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "24h"] | None,
        WithoutEffect("the prefix cache keeps every prefix until it needs the memory"),
    ] = None
    prompt_cache_options: Annotated[
        Any, WithoutEffect("the prefix cache keeps every prefix until it needs the memory")
    ] = None
    access_programs: Annotated[Any, WithoutEffect(_BOOKKEEPING)] = None
    image: Annotated[Any, WithoutEffect("the model reads text only")] = None
    background: Annotated[
        StrictBool | None,
        Refused("the server generates an answer only while its client waits", neutral=(False,)),
    ] = None
    conversation: Annotated[Any, Refused("use previous_response_id")] = None
    context_management: Annotated[Any, Refused("the server never removes parts of a conversation")] = None
    max_tool_calls: Annotated[int | None, Refused("the server runs no tools of its own")] = None
    prompt: Annotated[Any, Refused("the server stores no prompts")] = None
    moderation: Annotated[Any, Refused("the server does not moderate content")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        Refused("the server refuses a prompt that is too long, and never cuts it", neutral=("disabled",)),
    ] = None

    @model_validator(mode="after")
    def _can_be_answered(self) -> CreateResponse:
        if not self.input and self.previous_response_id is None:
            raise ValueError("input: send input, previous_response_id or both")
        names = Counter(tool.name for tool in self.offered)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"tools: two tools have the name {twice[0]!r}")
        for number, item in enumerate(self.input):
            if isinstance(item, FunctionCall):
                try:
                    item.function()
                except ValueError as error:
                    place = f"input.{number}.arguments"
                    raise ValueError(f"{place}: send the JSON text of an object") from error
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        """Return the number of top logprobs for each token, or None. The number alone requests them, too."""
        included = "message.output_text.logprobs" in (self.include or ())
        return self.top_logprobs or 0 if included or self.top_logprobs else None

    @property
    def offered(self) -> list[Tool]:
        """Return the tools of the prompt."""
        offered: list[Tool] = []
        for i, tool in enumerate(self.tools or ()):
            match tool:
                case FunctionTool():
                    offered.append(tool.neutral(f"tools.{i}"))
                case NamespaceTool():
                    offered.extend(tool.neutral(f"tools.{i}"))
                case WebSearch():
                    pass
                case _:
                    assert_never(tool)
        return offered

    def chosen(self, name: str) -> str:
        """Return the prompt's name of the tool that the client calls `name`. Functions of a namespace have
        names of their own, which are enough if only one has it."""
        inner = [whole for whole, (_, spelled) in self.called.items() if spelled == name]
        return inner[0] if len(inner) == 1 and all(tool.name != name for tool in self.offered) else name

    @property
    def called(self) -> dict[str, tuple[str, str]]:
        """Return the client's namespace and name of each tool that has a namespace, by the model's name of
        it."""
        return {
            qualified(tool.name, inner.name): (tool.name, inner.name)
            for tool in self.tools or ()
            if isinstance(tool, NamespaceTool)
            for inner in tool.tools
        }

    @property
    def remembers(self) -> bool:
        return self.store is not False
