"""Chat messages as OpenAI's clients write them, and as they send this server's answers back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from api.bodies import json_text, media
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly, WithoutEffect
from api.dialects.foreign import line, name_unread, with_known_role


def as_text_only(value: Any) -> Any:
    """Return what other servers write in a field for text: parts of it, or an object with it."""
    if isinstance(value, dict):
        return as_text_only(value.get("text") or value.get("content") or "")
    if isinstance(value, list):
        return "".join(str(as_text_only(part)) for part in value)
    return value if isinstance(value, str) else ""


HistoryText: TypeAlias = Annotated[str, BeforeValidator(as_text_only)]


class ContentPart(Body):
    """Text; `refusal` is text of an assistant message too."""

    type: Literal["text", "refusal", "input_text", "output_text"]
    text: HistoryText | None = None
    refusal: HistoryText | None = None

    @property
    def as_text(self) -> str:
        return self.text or self.refusal or ""


MEDIA = Partly("the model reads text only; other content becomes a line of text")
MediaData: TypeAlias = Annotated[str, AfterValidator(media.of_data)]
"""Base64 text, which validation replaces by its description: the data is freed with the body's own text."""
MediaUrl: TypeAlias = Annotated[str, AfterValidator(media.of_url)]
MediaFile: TypeAlias = Annotated[str, AfterValidator(media.of_file)]
Unread: TypeAlias = Annotated[Any, WithoutEffect("the server does not read it")]


class MediaPart(Body):
    """A part that a text model cannot read. A line of text replaces it."""


def _as_url(value: Any) -> Any:
    if isinstance(value, str):
        return {"url": value}
    return value if isinstance(value, dict | LinkedMedia) else {}


def _data(value: Any) -> Any:
    return value if isinstance(value, str) else ""


def _object(value: Any) -> Any:
    return value if isinstance(value, Body | dict) else {}


class LinkedMedia(Body):
    url: Annotated[MediaUrl, BeforeValidator(_data)] = ""
    detail: Unread = None


_NO_LINK = LinkedMedia()
_Linked = Annotated[LinkedMedia, BeforeValidator(_as_url, json_schema_input_type=str | LinkedMedia)]


class ImagePart(MediaPart):
    type: Literal["image_url"]
    image_url: _Linked = _NO_LINK

    @property
    def as_text(self) -> str:
        return media.note("image", self.image_url.url)


class VideoPart(MediaPart):
    """A part of vLLM's API, as is `audio_url`."""

    type: Literal["video_url"]
    video_url: _Linked = _NO_LINK

    @property
    def as_text(self) -> str:
        return media.note("video", self.video_url.url)


class AudioUrlPart(MediaPart):
    type: Literal["audio_url"]
    audio_url: _Linked = _NO_LINK

    @property
    def as_text(self) -> str:
        return media.note("audio", self.audio_url.url)


class InputAudio(Body):
    data: Annotated[MediaData, BeforeValidator(_data)] = ""
    format: Unread = None


class AudioPart(MediaPart):
    type: Literal["input_audio"]
    input_audio: Annotated[InputAudio, BeforeValidator(_object)] = InputAudio()

    @property
    def as_text(self) -> str:
        return media.note("audio", self.input_audio.data)


class InputFile(Body):
    """A file that was uploaded elsewhere has an id only."""

    file_data: Annotated[MediaFile, BeforeValidator(_data)] | None = None
    file_id: Unread = None
    filename: HistoryText | None = None


class FilePart(MediaPart):
    type: Literal["file"]
    file: Annotated[InputFile, BeforeValidator(_object)] = InputFile()

    @property
    def as_text(self) -> str:
        return media.note("document", self.file.file_data or "", self.file.filename)


class ForeignPart(MediaPart):
    """A part of a type that is not known here: its text, or a line in its place."""

    type: Any = None
    text: str

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        name_unread(value, value.get("type"))
        text = value.get("text")
        return {"text": text if isinstance(text, str) else line(value)}

    @property
    def as_text(self) -> str:
        return self.text


def part_kind(known: frozenset[str], value: Any) -> str:
    """Return the tag of a part: its type, or `other`."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in known else "other"


_TEXTS = ("text", "refusal", "input_text", "output_text")
_KINDS = frozenset((*_TEXTS, "image_url", "input_audio", "file", "video_url", "audio_url"))


def _kind(value: Any) -> str:
    kind = part_kind(_KINDS, value)
    return "text" if kind in _TEXTS else kind


_Part = Annotated[
    Annotated[ContentPart, Tag("text")]
    | Annotated[ImagePart, Tag("image_url")]
    | Annotated[AudioPart, Tag("input_audio")]
    | Annotated[FilePart, Tag("file")]
    | Annotated[VideoPart, Tag("video_url")]
    | Annotated[AudioUrlPart, Tag("audio_url")]
    | Annotated[ForeignPart, Tag("other")],
    Discriminator(_kind),
]


def spoken(parts: Sequence[Any]) -> list[str]:
    """Return the text of each part; a line about media stands on a line of its own."""
    texts: list[str] = []
    before: Any = None
    for part in parts:
        text = part.as_text
        noted = isinstance(part, MediaPart) or isinstance(before, MediaPart)
        if before is not None and noted and text and texts[-1] and not texts[-1].endswith("\n"):
            text = "\n" + text
        texts.append(text)
        before = part
    return texts


def in_parts(value: Any) -> Any:
    """Return content as a list of parts. It may be a text, one part, or texts in a list."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, dict):
        return [value] if value else []
    if isinstance(value, list) and any(isinstance(part, str) or part is None for part in value):
        parts = ({"type": "text", "text": part} if isinstance(part, str) else part for part in value)
        return [part for part in parts if part is not None]
    return value


def not_json(text: str) -> dict[str, str]:
    """Return, for the chat template, arguments that a model wrote and that cannot be parsed. The client sends
    them back with every later turn, beside its own complaint to the model."""
    return {"not_json": text}


def _loaded(text: str) -> Any:
    """Decode JSON text, or what Python's parser takes for it: models also write NaN, control characters in
    strings, and lone surrogates."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return json.loads(text, strict=False)


def json_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_json(value: Any) -> Any:
    """Parse a call's arguments: clients send JSON text, and chat templates take the object."""
    if value is None or value == [] or isinstance(value, dict):
        return value or {}
    if not isinstance(value, str):
        return not_json(json_of(value))
    if not value.strip():
        return {}
    try:
        json_text.check_bounds(value.encode(errors="replace"))
        read = _loaded(value)
    except json_text.TooMuch:
        raise
    except (ValueError, RecursionError):
        return not_json(value)
    if isinstance(read, str):
        # Vercel's AI SDK encodes arguments that are not JSON as a JSON string.
        return not_json(read)
    return {} if read == [] else read if isinstance(read, dict) else not_json(value)


NAMELESS = "unknown"
"""The name of a call in a conversation that has none: templates write one."""
CalledName: TypeAlias = Annotated[
    str, BeforeValidator(lambda name: name if isinstance(name, str) and name else NAMELESS)
]


class CalledFunction(Body):
    name: CalledName = NAMELESS
    arguments: Annotated[JsonObject, BeforeValidator(read_json)] = Field(default_factory=dict)


def _listed_calls(value: Any) -> Any:
    """Return calls without what is none: an object, a text or a null in their place."""
    return [call for call in value if isinstance(call, dict)] if isinstance(value, list) else None


HistoryId: TypeAlias = Annotated[
    str | None, BeforeValidator(lambda given: given if isinstance(given, str | None) else str(given))
]


class CalledTool(Body):
    """A custom tool, called with a text."""

    name: CalledName = NAMELESS
    input: Annotated[str, BeforeValidator(lambda text: text if isinstance(text, str) else json_of(text))] = ""


class ToolCall(Body):
    """A tool call of an assistant message. `index` is a remnant of a stream's deltas."""

    id: HistoryId | None = None
    type: Annotated[Any, WithoutEffect("the member that is there says what is called")] = None
    function: CalledFunction | None = None
    custom: CalledTool | None = None
    index: Annotated[Any, WithoutEffect("the place in the list is the index")] = None

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        """Read a call without a function's member: what it has beside `type`, or below it."""
        if not isinstance(value, dict) or value.get("function") or value.get("custom"):
            return value
        kind = value.get("type")
        inner = value.get(kind) if isinstance(kind, str) else None
        members = inner if isinstance(inner, dict) else value
        around = {name: members[name] for name in members if name not in ("id", "type", "index", "name")}
        arguments = around.get("arguments", around)
        name = members.get("name") or (kind if kind != "function" else None)
        return {"id": value.get("id"), "function": {"name": name, "arguments": arguments}}

    @property
    def neutral(self) -> dict[str, Any]:
        """Return the call as chat templates take it."""
        called: dict[str, Any] = {"name": NAMELESS, "arguments": {}}
        if self.function is not None:
            called = {"name": self.function.name, "arguments": self.function.arguments}
        elif self.custom is not None:
            called = {"name": self.custom.name, "arguments": {"input": self.custom.input}}
        whose = {} if self.id is None else {"id": self.id}
        return {**whose, "type": "function", "function": called}


class PredictedPart(Body):
    type: Literal["text"]
    text: str


class Prediction(Body):
    """What the client expects of the answer: an edited file, most of which stays."""

    bulk = ("content",)

    type: Literal["content"]
    content: Annotated[Listed[PredictedPart], BeforeValidator(in_parts)]

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.content])


_OF_HISTORY = "it tells of the conversation, and chat templates have no field for it"
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
_REASONING_ID = "rs_"
"""How the id of a reasoning item of Responses begins."""


def _old_call(value: Any) -> ToolCall | None:
    return ToolCall.model_validate({"function": value}) if isinstance(value, dict) and value else None


class ChatMessage(Body):
    """A message as chat templates take it. `developer` is OpenAI's newer name for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Listed[_Part] | None, BeforeValidator(in_parts), MEDIA] = None
    name: Annotated[str | None, BeforeValidator(lambda name: name if isinstance(name, str) else None)] = None
    tool_call_id: HistoryId | None = None
    tool_calls: Annotated[Listed[ToolCall] | None, BeforeValidator(_listed_calls)] = None
    reasoning_content: HistoryText | None = None
    reasoning: HistoryText | None = None
    """vLLM's newer name for `reasoning_content`."""
    refusal: HistoryText | None = None
    annotations: Annotated[Any, WithoutEffect(_OF_HISTORY)] = None
    audio: Annotated[Any, WithoutEffect(_OF_HISTORY)] = None
    provider_specific_fields: Annotated[
        Any, WithoutEffect("litellm's own data, which it sends back with an answer")
    ] = None
    function_call: Annotated[Any, BeforeValidator(_old_call)] = None
    """The deprecated form of `tool_calls`."""

    @model_validator(mode="before")
    @classmethod
    def _of_any_role(cls, value: Any) -> Any:
        """Results once had a role of their own; a role that is not known here is the user's."""
        if isinstance(value, dict) and value.get("role") == "function":
            return {**value, "role": "tool"}
        return with_known_role(value, _ROLES)

    @model_validator(mode="before")
    @classmethod
    def _thoughts_by_id(cls, value: Any) -> Any:
        """Pydantic AI, in a session that comes from Responses, sends each thought in a field that has the
        name of its item's id."""
        if not isinstance(value, dict) or cls._names.issuperset(value):
            return value
        thoughts = {
            name: text
            for name, text in value.items()
            if name.startswith(_REASONING_ID) and isinstance(text, str)
        }
        if not thoughts or value.get("reasoning_content") or value.get("reasoning"):
            return value
        rest = {name: given for name, given in value.items() if name not in thoughts}
        return {**rest, "reasoning_content": "\n\n".join(thoughts.values())}

    @property
    def calls(self) -> list[ToolCall]:
        return [*(self.tool_calls or ()), *filter(None, (self.function_call,))]

    @property
    def thoughts(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def blocks(self) -> list[str]:
        """Return the text of each part."""
        parts = spoken(self.content or ())
        return [*parts, self.refusal] if self.refusal else parts
