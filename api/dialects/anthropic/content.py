"""Messages as Anthropic's clients write them, and as they send this server's answers back: lists of
blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, StrictBool

from api.bodies import media
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly, Refused, WithoutEffect
from api.dialects.anthropic.foreign import understood
from api.dialects.openai.messages import MEDIA, MediaData, MediaPart, MediaUrl, Unread, read_json

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


class Base64Source(Body):
    type: Literal["base64"]
    data: MediaData
    media_type: Unread = None

    @property
    def what(self) -> str:
        return self.data


class UrlSource(Body):
    type: Literal["url"]
    url: MediaUrl

    @property
    def what(self) -> str:
        return self.url


class FileSource(Body):
    type: Literal["file"]
    file_id: Unread = None

    @property
    def what(self) -> str:
        return ""


class TextSource(Body):
    """A document that is text."""

    type: Literal["text"]
    data: str
    media_type: Unread = None


class Image(_Block, MediaPart):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource | FileSource, Discriminator("type")]

    @property
    def as_text(self) -> str:
        return media.note("image", self.source.what)


def as_blocks(value: Any) -> Any:
    """Accept a string as one text block, and blocks of unknown types as text."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else understood(value, _KNOWN)


_KNOWN = frozenset(
    (
        *("text", "image", "document", "search_result", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result"),
    )
)


class BlocksSource(Body):
    """A document that is made of blocks."""

    type: Literal["content"]
    content: Annotated[
        Listed[Annotated[Text | Image, Discriminator("type")]],
        BeforeValidator(as_blocks, json_schema_input_type=str | list[Any]),
    ]


_NO_CITATIONS = Refused("the server generates no citations", neutral=({"enabled": False},))


class Document(_Block, MediaPart):
    type: Literal["document"]
    source: Annotated[
        Base64Source | UrlSource | FileSource | TextSource | BlocksSource, Discriminator("type")
    ]
    title: str | None = None
    context: str | None = None
    citations: Annotated[JsonObject | None, _NO_CITATIONS] = None

    @property
    def as_text(self) -> str:
        """Return a text document with its title, or the line that names another one."""
        match self.source:
            case TextSource(data=text):
                return joined(filter(None, (self.title, self.context, text)))
            case BlocksSource(content=blocks):
                return joined(filter(None, (self.title, self.context, *[block.as_text for block in blocks])))
            case source:
                line = media.note("document", source.what, self.title)
                return joined(filter(None, (line, self.context)))


class SearchResult(_Block):
    """What a client's own search found: text."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Listed[Text]
    citations: Annotated[JsonObject | None, _NO_CITATIONS] = None

    @property
    def as_text(self) -> str:
        return joined((self.title, self.source, *[block.text for block in self.content]))


class Thinking(Body):
    """The model's reasoning, sent back. This server's signature signs nothing, so none is checked."""

    type: Literal["thinking"]
    thinking: str = ""
    signature: Annotated[str, WithoutEffect("the server does not sign thinking")] = ""


class RedactedThinking(Body):
    """Another provider's encrypted reasoning from an earlier turn; no other server can read it."""

    type: Literal["redacted_thinking"]
    data: Annotated[str, WithoutEffect("only the provider that encrypted it can read it")] = ""


class ToolUse(_Block):
    type: Literal["tool_use"]
    id: str = ""
    name: str = ""
    input: Annotated[JsonObject, BeforeValidator(read_json)] = Field(default_factory=dict)
    caller: Annotated[JsonObject | None, WithoutEffect("the call is history")] = None


_Shown = Annotated[Text | Image | Document | SearchResult, Discriminator("type")]
_Results = Annotated[Listed[_Shown], BeforeValidator(as_blocks, json_schema_input_type=str | list[_Shown])]


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


ContentBlock: TypeAlias = (
    Text | Image | Document | SearchResult | Thinking | RedactedThinking | ToolUse | ToolResult
)
_TaggedBlock = Annotated[ContentBlock, Discriminator("type")]


class InputMessage(Body):
    """One message. Consecutive messages of one role count as one turn, as in Anthropic's API."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Listed[_TaggedBlock],
        BeforeValidator(as_blocks, json_schema_input_type=str | list[_TaggedBlock]),
        MEDIA,
    ] = Field(default_factory=list)

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
        case SearchResult(content=blocks) | Document(source=BlocksSource(content=blocks)):
            within = blocks
    for each in within:
        yield from hold_seconds(each)


def texts(blocks: Sequence[ContentBlock]) -> list[str]:
    return [block.as_text for block in blocks if isinstance(block, Text | Image | Document | SearchResult)]


def joined(parts: Any) -> str:
    """Join blocks as paragraphs: clients do not end them with a line break."""
    return "\n\n".join(parts)
