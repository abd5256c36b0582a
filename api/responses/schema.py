"""The body of OpenAI's responses API that we accept. What we do not honour is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from api.fields import Partly, Refused, WithoutEffect
from api.openai.messages import Body
from api.openai.structured import FlatFormat
from api.openai.tools import CHOICE, MAX_TOOLS, STRICT, Choice
from api.responses.items import FunctionCall, TaggedItem, as_items
from scheduler.request import Tool

MAX_ITEMS = 100_000

_BOOKKEEPING = "the provider's own bookkeeping"


class FunctionTool(Body):
    """Other types of tools run at OpenAI; they are refused by their type."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, STRICT] = None
    defer_loading: Annotated[
        bool | None, Refused("there is no tool search; send the tools that are wanted", neutral=(False,))
    ] = None
    allowed_callers: Annotated[
        list[str] | None, Refused("the model is the only caller", neutral=(["direct"],))
    ] = None
    output_schema: Annotated[dict[str, Any] | None, WithoutEffect("templates have no place for it")] = None

    def neutral(self, place: str) -> Tool:
        """`place`: where in the body it stands."""
        return Tool(
            self.name,
            self.description or "",
            self.parameters or {},
            bool(self.strict),
            f"{place}.parameters",
        )


class ReasoningOptions(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None, WithoutEffect("thoughts are told, not summed up")
    ] = None
    generate_summary: Annotated[
        Literal["auto", "concise", "detailed"] | None, WithoutEffect("thoughts are told, not summed up")
    ] = None
    context: Annotated[
        Literal["auto", "current_turn", "all_turns"] | None, WithoutEffect("the model's template decides")
    ] = None


class TextOptions(Body):
    format: FlatFormat | None = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Refused("models are not told", neutral=("medium",))
    ] = None


class StreamOptions(Body):
    include_obfuscation: Annotated[bool | None, Refused("nothing is padded", neutral=(False,))] = None


class CreateResponse(Body):
    """`POST /v1/responses`."""

    model: str | None = None
    input: Annotated[
        list[TaggedItem],
        Field(max_length=MAX_ITEMS),
        BeforeValidator(as_items, json_schema_input_type=str | list[TaggedItem]),
    ] = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    tools: Annotated[list[FunctionTool] | None, Partly("functions; other tools run at their provider")] = (
        Field(default=None, max_length=MAX_TOOLS)
    )
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=16)

    include: Annotated[
        list[Literal["reasoning.encrypted_content"]] | None, WithoutEffect("thoughts are told as they are")
    ] = None
    user: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    safety_identifier: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    client_metadata: Annotated[dict[str, Any] | None, WithoutEffect(_BOOKKEEPING)] = None
    service_tier: Annotated[Literal["auto", "default"] | None, WithoutEffect("there is one tier")] = None
    prompt_cache_key: Annotated[
        str | None, WithoutEffect("what prompts have in common is found without it")
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "24h"] | None, WithoutEffect("prefixes stay as long as there is room")
    ] = None
    background: Annotated[
        bool | None, Refused("an answer is made while its client waits", neutral=(False,))
    ] = None
    conversation: Annotated[Any, Refused("previous_response_id goes on with a conversation")] = None
    context_management: Annotated[Any, Refused("nothing is removed from a conversation")] = None
    max_tool_calls: Annotated[int | None, Refused("there are no tools of the server's own")] = None
    prompt: Annotated[Any, Refused("there are no stored prompts")] = None
    moderation: Annotated[Any, Refused("nothing is moderated")] = None
    top_logprobs: Annotated[
        int | None, Refused("the engine does not report log-probabilities yet", neutral=(0,))
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        Refused("what is too long is refused, not cut", neutral=("disabled",)),
    ] = None

    @model_validator(mode="after")
    def _can_be_answered(self) -> CreateResponse:
        if not self.input and self.previous_response_id is None:
            raise ValueError("input: there is nothing to answer")
        for number, item in enumerate(self.input):
            if isinstance(item, FunctionCall):
                try:
                    item.function()
                except ValueError as error:
                    place = f"input.{number}.arguments"
                    raise ValueError(f"{place}: it is not the JSON text of an object") from error
        return self

    @property
    def remembers(self) -> bool:
        return self.store is not False
