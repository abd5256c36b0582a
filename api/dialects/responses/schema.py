"""The accepted body of OpenAI's responses API. Unsupported fields are refused by name."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from api.bodies.fields import AtMost, JsonObject, Listed, Partly, WithoutEffect
from api.bodies.unsupported import RESPONSES
from api.dialects.openai.schema import BOOKKEEPING, NO_PADDING, ChatFields, DecodingFields
from api.dialects.openai.tools import MAX_TOOLS
from api.dialects.responses.items import TaggedItem, as_items
from api.dialects.responses.tools import AnyTool, offers
from scheduler.request import MAX_TOP_LOGPROBS

Items = Annotated[
    Listed[TaggedItem],
    BeforeValidator(as_items, json_schema_input_type=str | list[TaggedItem]),
]
Metadata = Annotated[dict[str, str], AtMost(16)]


class CreateResponse(ChatFields, DecodingFields):
    """`POST /v1/responses`."""

    bulk = ("input", "tools", "instructions")
    unsupported = RESPONSES

    model: str | None = None
    input: Items = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: StrictBool | None = None
    stream: StrictBool | None = None
    stream_options: Annotated[Any, WithoutEffect(NO_PADDING)] = None
    tools: Annotated[
        Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        Partly("what clients run; the server runs no tools of its own, and names those it leaves out"),
    ] = None
    metadata: Metadata | None = None

    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    include: Annotated[
        Listed[Any] | None,
        Partly(
            "`message.output_text.logprobs` adds log-probabilities, `reasoning.content` reasoning's text;"
            " others have no effect"
        ),
    ] = None
    client_metadata: Annotated[JsonObject | None, WithoutEffect(BOOKKEEPING)] = None
    access_programs: Annotated[Any, WithoutEffect(BOOKKEEPING)] = None
    max_tool_calls: Annotated[int | None, WithoutEffect("the server runs no tools of its own")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        WithoutEffect("a prompt that is too long is refused, and never cut"),
    ] = None
    image: Annotated[Any, WithoutEffect("the model reads text only")] = None
    background: StrictBool | None = None
    background_options: Annotated[Any, WithoutEffect("the server begins at once")] = None

    @model_validator(mode="after")
    def _can_be_answered(self) -> CreateResponse:
        if not self.input and self.previous_response_id is None:
            raise ValueError("input: send input, previous_response_id or both")
        if self.background and not self.remembers:
            raise ValueError("background: needs `store`, from which its answer is read")
        names = Counter(offer.tool.name for offer in offers(self.tools))
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"tools: two tools have the name {twice[0]!r}")
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        """Return the number of top logprobs for each token, or None. The number alone requests them, too."""
        included = "message.output_text.logprobs" in (self.include or ())
        return self.top_logprobs or 0 if included or self.top_logprobs else None

    @property
    def shows_reasoning(self) -> bool:
        """Return whether items have the reasoning as content, which some clients take for the answer."""
        return "reasoning.content" in (self.include or ())

    @property
    def summarizes(self) -> bool:
        reasoning = self.reasoning
        return reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)

    @property
    def remembers(self) -> bool:
        return self.store is not False
