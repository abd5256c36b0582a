"""Messages as Anthropic's clients write them, and as they send this server's answers back: lists of
blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StrictBool,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from api.bodies import media
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly, WithoutEffect
from api.bodies.unsupported import CITED
from api.dialects.foreign import line, name_unread, readable, with_known_role
from api.dialects.openai.messages import (
    MEDIA,
    NAMELESS,
    CalledName,
    Unread,
    read_json,
)

CACHE = Partly(
    "with a ttl, what was computed up to there is held for that long, as far as memory allows; without one"
    " the prefix cache decides"
)


class CacheControl(Body):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Annotated[str | None, WithoutEffect("who shares prefixes is the operator's to say")] = None

    @property
    def seconds(self) -> float | None:
        """Return how long to hold the prefix up to the block, or None if the prefix cache decides."""
        return None if self.ttl is None else _TTL_SECONDS[self.ttl]


_TTL_SECONDS = {"5m": 300.0, "1h": 3600.0}


class _Block(Body):
    cache_control: Annotated[CacheControl | None, CACHE] = None


class Text(_Block):
    type: Literal["text"]
    text: str = ""
    citations: Annotated[Listed[Any] | None, WithoutEffect("the model reads the text alone")] = None

    @property
    def as_text(self) -> str:
        return self.text


def as_blocks(value: Any) -> Any:
    """Accept a string as one text block, and what is not known here as text."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, dict):
        return as_blocks([value])
    if not isinstance(value, list):
        return value
    if all(map(_is_known, value)):
        return value
    return [_block(block) for block in value if block is not None]


def _block(block: Any) -> Any:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not isinstance(block, dict) or _is_known(block):
        return block
    if block.get("type") == "search_result":
        # What a client's own search found: text with its title and its place.
        found = {name: given for name, given in block.items() if name not in ("content", "source")}
        found["source"] = {"type": "content", "content": block.get("content", [])}
        return {**found, "type": "document", "context": block.get("source")}
    if block.get("type") is None and isinstance(block.get("text"), str):
        return {**block, "type": "text"}
    mark = block.get("cache_control")
    return {**_line(block), **({} if mark is None else {"cache_control": mark})}


def _is_known(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind in _KNOWN


def _line(block: dict[str, Any]) -> dict[str, Any]:
    kind, text = block.get("type"), line(block)
    if not (kind == "compaction" and text):
        name_unread(block, kind)
    return {"type": "text", "text": text}


def _readable(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    return readable(value, read, _line)


_KNOWN = frozenset(
    (
        *("text", "image", "document", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result"),
    )
)


class Source(Body):
    """What an image or a document is: media, of which a description is kept, text, or blocks."""

    type: Literal["base64", "url", "file", "text", "content"]
    data: str = ""
    url: str = ""
    file_id: Unread = None
    media_type: Unread = None
    content: Annotated[
        Listed[Annotated[Text | Image, Discriminator("type")]],
        WrapValidator(_readable),
        BeforeValidator(as_blocks, json_schema_input_type=str | list[Any]),
    ] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _described(cls, value: Any) -> Any:
        match value:
            case {"type": "base64", "data": str(data)}:
                return {**value, "data": media.of_data(data)}
            case {"type": "url", "url": str(url)}:
                return {**value, "data": media.of_url(url), "url": ""}
            case {"type": "base64" | "url"}:
                raise ValueError("it has no data")
            case _:
                return value


class Image(_Block):
    type: Literal["image"]
    source: Source

    @property
    def as_text(self) -> str:
        return media.note("image", self.source.data)


class Document(_Block):
    unsupported = CITED

    type: Literal["document"]
    source: Source
    title: str | None = None
    context: str | None = None

    @property
    def as_text(self) -> str:
        """Return a text document with its title, or the line that names another one."""
        source = self.source
        if source.type in ("text", "content"):
            parts = (self.title, self.context, source.data, *(block.as_text for block in source.content))
        else:
            parts = (media.note("document", source.data, self.title), self.context)
        return joined(filter(None, parts))


class Thinking(Body):
    """The model's reasoning, sent back; another provider's, which is encrypted, says nothing. This server's
    signature signs nothing, so none is checked."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""
    signature: Annotated[str, WithoutEffect("the server does not sign thinking")] = ""
    data: Annotated[str, WithoutEffect("only the provider that encrypted it can read it")] = ""


class ToolUse(_Block):
    type: Literal["tool_use"]
    id: str = ""
    name: CalledName = NAMELESS
    input: Annotated[JsonObject, BeforeValidator(read_json)] = Field(default_factory=dict)
    caller: Annotated[JsonObject | None, WithoutEffect("the call is history")] = None


_Shown = Annotated[Text | Image | Document, Discriminator("type")]
_Results = Annotated[
    Listed[_Shown],
    WrapValidator(_readable),
    BeforeValidator(as_blocks, json_schema_input_type=str | list[_Shown]),
]


class ToolResult(_Block):
    type: Literal["tool_result"]
    tool_use_id: str = ""
    content: Annotated[_Results | None, MEDIA] = None
    is_error: Annotated[
        StrictBool | None, WithoutEffect("chat templates have no field for it; the result's text says it")
    ] = None

    @property
    def text(self) -> str:
        return joined(block.as_text for block in self.content or ())


ContentBlock: TypeAlias = Text | Image | Document | Thinking | ToolUse | ToolResult
_TaggedBlock = Annotated[ContentBlock, Discriminator("type")]


_ROLES = ("user", "assistant", "system")


class InputMessage(Body):
    """One message. Consecutive messages of one role count as one turn, as in Anthropic's API."""

    role: str
    content: Annotated[
        Listed[_TaggedBlock],
        WrapValidator(_readable),
        BeforeValidator(as_blocks, json_schema_input_type=str | list[_TaggedBlock]),
        MEDIA,
    ] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _of_any_role(cls, value: Any) -> Any:
        return with_known_role(value, _ROLES)

    @property
    def is_prefill(self) -> bool:
        """Return whether an answer can continue this message."""
        return not any(isinstance(block, ToolUse) for block in self.content) and bool(texts(self.content))


def hold_seconds(block: ContentBlock) -> Iterator[float]:
    """Yield for how long the client wants the prefix up to this block, or to a block in it, to be held."""
    if isinstance(block, _Block) and block.cache_control is not None:
        yield from filter(None, (block.cache_control.seconds,))
    within: Iterable[ContentBlock] = ()
    match block:
        case ToolResult(content=blocks):
            within = blocks or ()
        case Document(source=Source(content=blocks)):
            within = blocks
    for each in within:
        yield from hold_seconds(each)


def texts(blocks: Sequence[ContentBlock]) -> list[str]:
    return [block.as_text for block in blocks if isinstance(block, Text | Image | Document)]


def joined(parts: Any) -> str:
    """Join blocks as paragraphs: clients do not end them with a line break."""
    return "\n\n".join(parts)
