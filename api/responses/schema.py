"""The accepted body of OpenAI's responses API. Unsupported fields are refused by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, assert_never

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, model_validator

from api.fields import AtMost, JsonObject, Listed, Partly, Refused, WithoutEffect
from api.openai.messages import Body
from api.openai.schema import DecodingFields
from api.openai.structured import FlatFormat
from api.openai.tools import CHOICE, MAX_TOOLS, STRICT, Choice
from api.responses.items import FunctionCall, TaggedItem, as_items, qualified
from scheduler.request import MAX_TOP_LOGPROBS, Tool

_BOOKKEEPING = "the provider's own bookkeeping"
_NO_SEARCH = "nothing is searched here; the model is not offered it"


class FunctionTool(Body):
    """A function that the client runs."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: Annotated[StrictBool | None, STRICT] = None
    defer_loading: Annotated[
        StrictBool | None,
        Refused("there is no tool search; send the tools that are wanted", neutral=(False,)),
    ] = None
    allowed_callers: Annotated[
        Listed[str] | None, Refused("the model is the only caller", neutral=(["direct"],))
    ] = None
    output_schema: Annotated[JsonObject | None, WithoutEffect("templates have no place for it")] = None

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


class ReasoningOptions(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        WithoutEffect("reasoning is reported in full, not summarised"),
    ] = None
    generate_summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        WithoutEffect("reasoning is reported in full, not summarised"),
    ] = None
    context: Annotated[
        Literal["auto", "current_turn", "all_turns"] | None, WithoutEffect("the model's template decides")
    ] = None


class TextOptions(Body):
    format: FlatFormat | None = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Refused("models have no such setting", neutral=("medium",))
    ] = None


class StreamOptions(Body):
    include_obfuscation: Annotated[StrictBool | None, Refused("nothing is padded", neutral=(False,))] = None


class CreateResponse(DecodingFields):
    """`POST /v1/responses`."""

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
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: Annotated[
        Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        Partly("functions; other tools run at their provider"),
    ] = None
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: StrictBool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    metadata: Annotated[dict[str, str], AtMost(16)] | None = None

    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    prompt_logprobs: Annotated[
        int | None, Refused("a response has no place for them; completions and chat completions have")
    ] = None
    include: Annotated[
        Listed[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None,
        Partly("log-probabilities of the text; reasoning is never encrypted"),
    ] = None
    user: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    safety_identifier: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    client_metadata: Annotated[JsonObject | None, WithoutEffect(_BOOKKEEPING)] = None
    service_tier: Annotated[Literal["auto", "default"] | None, WithoutEffect("there is one tier")] = None
    prompt_cache_key: Annotated[
        str | None, WithoutEffect("what prompts have in common is found without it")
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "24h"] | None, WithoutEffect("prefixes stay as long as there is room")
    ] = None
    prompt_cache_options: Annotated[Any, WithoutEffect("prefixes stay as long as there is room")] = None
    access_programs: Annotated[Any, WithoutEffect(_BOOKKEEPING)] = None
    image: Annotated[Any, WithoutEffect("models here see no pictures")] = None
    background: Annotated[
        StrictBool | None, Refused("an answer is made while its client waits", neutral=(False,))
    ] = None
    conversation: Annotated[Any, Refused("previous_response_id goes on with a conversation")] = None
    context_management: Annotated[Any, Refused("nothing is removed from a conversation")] = None
    max_tool_calls: Annotated[int | None, Refused("there are no tools of the server's own")] = None
    prompt: Annotated[Any, Refused("there are no stored prompts")] = None
    moderation: Annotated[Any, Refused("nothing is moderated")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        Refused("what is too long is refused, not cut", neutral=("disabled",)),
    ] = None

    def release(self) -> None:
        self.input.clear()

    @model_validator(mode="after")
    def _can_be_answered(self) -> CreateResponse:
        if not self.input and self.previous_response_id is None:
            raise ValueError("input: there is nothing to answer")
        names = Counter(tool.name for tool in self.offered)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"tools: there are two of the name {twice[0]!r}")
        for number, item in enumerate(self.input):
            if isinstance(item, FunctionCall):
                try:
                    item.function()
                except ValueError as error:
                    place = f"input.{number}.arguments"
                    raise ValueError(f"{place}: it is not the JSON text of an object") from error
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
        names = [tool.name for tool in self.offered]
        inner = [whole for whole in names if self.called(whole)[1] == name]
        return inner[0] if name not in names and len(inner) == 1 else name

    def called(self, name: str) -> tuple[str | None, str]:
        """Return the client's namespace and name of the tool that the model calls `name`."""
        for tool in self.tools or ():
            if isinstance(tool, NamespaceTool):
                for inner in tool.tools:
                    if name == qualified(tool.name, inner.name):
                        return tool.name, inner.name
        return None, name

    @property
    def remembers(self) -> bool:
        return self.store is not False
