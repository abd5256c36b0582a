"""The accepted body of OpenAI's responses API. Unsupported fields are refused by name."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StrictBool,
    model_validator,
)

from api.bodies.body import Body
from api.bodies.fields import AtMost, JsonObject, Listed, Partly, WithoutEffect
from api.bodies.unsupported import RESPONSES
from api.dialects.openai.schema import NO_PADDING, AccountFields, DecodingFields
from api.dialects.openai.structured import StructuredFields
from api.dialects.openai.thinking import ThinkingFields
from api.dialects.openai.tools import CHOICE, MAX_TOOLS, Choice
from api.dialects.responses.input_items import kept
from api.dialects.responses.items import CompactionTrigger, TaggedItem, as_items
from api.dialects.responses.tools import AnyTool, offers
from api.dialects.spellings import BoundFields
from scheduler.request import MAX_TOP_LOGPROBS

_BOOKKEEPING = "used only for the provider's own accounting"


class StreamOptions(Body):
    include_obfuscation: Annotated[StrictBool | None, WithoutEffect(NO_PADDING)] = None


class ConversationReference(Body):
    id: str


def _as_reference(value: Any) -> Any:
    return {"id": value} if isinstance(value, str) else value


Items = Annotated[
    Listed[TaggedItem],
    BeforeValidator(as_items, json_schema_input_type=str | list[TaggedItem]),
]
Metadata = Annotated[dict[str, str], AtMost(16)]
ShortMetadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], AtMost(16)
]
"""With OpenAI's bounds: a conversation repeats it in each answer."""


class KeptItems(Body):
    """A body with items for the store."""

    items_field: ClassVar[str]

    _kept: list[Any] = PrivateAttr(default_factory=list)
    """The items as the client wrote them."""

    @model_validator(mode="wrap")
    @classmethod
    def _with_kept_items(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        body = read(value)
        if isinstance(value, dict) and body.keeps_items:
            body._kept = kept(value.get(cls.items_field))
        return body

    @property
    def kept(self) -> list[Any]:
        return self._kept

    @property
    def keeps_items(self) -> bool:
        return True


class AddItems(KeptItems):
    """`POST /v1/conversations/{id}/items`."""

    items_field = "items"
    bulk = ("items", "_kept")

    items: Items


class CreateConversation(AddItems):
    """`POST /v1/conversations`."""

    items: Items = Field(default_factory=list)
    metadata: ShortMetadata | None = None


class UpdateConversation(Body):
    """`POST /v1/conversations/{id}`."""

    metadata: ShortMetadata | None = None


class CreateResponse(KeptItems, AccountFields, BoundFields, ThinkingFields, StructuredFields, DecodingFields):
    """`POST /v1/responses`."""

    items_field = "input"
    bulk = ("input", "_kept", "tools", "instructions")
    unsupported = RESPONSES

    model: str | None = None
    input: Items = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: StrictBool | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[
        Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        Partly("what clients run; the server runs no tools of its own, and names those it leaves out"),
    ] = None
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: StrictBool | None = None
    metadata: Metadata | None = None

    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    include: Annotated[
        Listed[Any] | None,
        Partly(
            "`message.output_text.logprobs` adds log-probabilities, `reasoning.content` reasoning's text;"
            " others have no effect"
        ),
    ] = None
    client_metadata: Annotated[JsonObject | None, WithoutEffect(_BOOKKEEPING)] = None
    access_programs: Annotated[Any, WithoutEffect(_BOOKKEEPING)] = None
    max_tool_calls: Annotated[int | None, WithoutEffect("the server runs no tools of its own")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        WithoutEffect("a prompt that is too long is refused, and never cut"),
    ] = None
    image: Annotated[Any, WithoutEffect("the model reads text only")] = None
    background: StrictBool | None = None
    background_options: Annotated[Any, WithoutEffect("the server begins at once")] = None
    conversation: Annotated[
        ConversationReference | None,
        BeforeValidator(_as_reference, json_schema_input_type=str | ConversationReference),
    ] = None

    @model_validator(mode="after")
    def _can_be_answered(self) -> CreateResponse:
        if not self.input and self.previous_response_id is None and self.conversation is None:
            raise ValueError("input: send input, previous_response_id or both")
        if self.conversation is not None and self._asks_for_compaction:
            raise ValueError("conversation: it keeps all of its items; compact without it")
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

    @property
    def conversation_id(self) -> str | None:
        return None if self.conversation is None else self.conversation.id

    @property
    def keeps_items(self) -> bool:
        return self.remembers or self.compacts or self.conversation is not None

    @property
    def compacts(self) -> bool:
        """Return whether a summary is wanted in place of an answer, as Codex asks for it."""
        return self._asks_for_compaction

    @property
    def _asks_for_compaction(self) -> bool:
        return any(isinstance(item, CompactionTrigger) for item in self.input)


class CompactRequest(CreateResponse):
    """`POST /v1/responses/compact`."""

    @property
    def compacts(self) -> bool:
        return True
