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
    ValidationInfo,
    model_validator,
)

from api.bodies import json_text, media
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly, Refused, WithoutEffect, unsupported


class ContentPart(Body):
    """Text; `refusal` is text of an assistant message too."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @property
    def as_text(self) -> str:
        return self.text or self.refusal or ""

    @model_validator(mode="after")
    def _says_it_where_its_type_says(self) -> ContentPart:
        if (self.text if self.type == "text" else self.refusal) is None:
            raise ValueError(f"a part of type {self.type!r} needs the field {self.type!r}")
        return self


MEDIA = Partly("the model reads text only; other content becomes a line of text (`--media`)")
MediaData: TypeAlias = Annotated[str, AfterValidator(media.of_data)]
"""Base64 text, which validation replaces by its description: the data is freed with the body's own text."""
MediaUrl: TypeAlias = Annotated[str, AfterValidator(media.of_url)]
MediaFile: TypeAlias = Annotated[str, AfterValidator(media.of_file)]
Unread: TypeAlias = Annotated[str | None, WithoutEffect("the server does not read it")]


class MediaPart(Body):
    """A part that a text model cannot read. A line of text replaces it (`--media note`), or it is refused."""

    @model_validator(mode="before")
    @classmethod
    def _may_be_noted(cls, value: Any, info: ValidationInfo) -> Any:
        if (info.context or {}).get("media") == "refuse":
            raise unsupported("this model reads text only")
        return value


def _as_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class LinkedMedia(Body):
    url: MediaUrl
    detail: Unread = None


_Linked = Annotated[LinkedMedia, BeforeValidator(_as_url, json_schema_input_type=str | LinkedMedia)]


class ImagePart(MediaPart):
    type: Literal["image_url"]
    image_url: _Linked

    @property
    def as_text(self) -> str:
        return media.note("image", self.image_url.url)


class VideoPart(MediaPart):
    """A part of vLLM's API, as is `audio_url`."""

    type: Literal["video_url"]
    video_url: _Linked

    @property
    def as_text(self) -> str:
        return media.note("video", self.video_url.url)


class AudioUrlPart(MediaPart):
    type: Literal["audio_url"]
    audio_url: _Linked

    @property
    def as_text(self) -> str:
        return media.note("audio", self.audio_url.url)


class InputAudio(Body):
    data: MediaData
    format: Unread = None


class AudioPart(MediaPart):
    type: Literal["input_audio"]
    input_audio: InputAudio

    @property
    def as_text(self) -> str:
        return media.note("audio", self.input_audio.data)


class InputFile(Body):
    """A file that was uploaded elsewhere has an id only."""

    file_data: MediaFile | None = None
    file_id: Unread = None
    filename: str | None = None


class FilePart(MediaPart):
    type: Literal["file"]
    file: InputFile

    @property
    def as_text(self) -> str:
        return media.note("document", self.file.file_data or "", self.file.filename)


_Part = Annotated[
    ContentPart | ImagePart | AudioPart | FilePart | VideoPart | AudioUrlPart, Discriminator("type")
]


def spoken(parts: Sequence[Any]) -> list[str]:
    """Return the text of each part; a line about media stands on a line of its own."""
    texts: list[str] = []
    before: Any = None
    for part in parts:
        text = part.as_text
        noted = isinstance(part, MediaPart) or isinstance(before, MediaPart)
        if before is not None and noted and not texts[-1].endswith("\n"):
            text = "\n" + text
        texts.append(text)
        before = part
    return texts


def _in_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


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


def read_json(value: Any) -> Any:
    """Parse a call's arguments: clients send JSON text, and chat templates take the object."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return {}
    json_text.check_bounds(value.encode(errors="replace"))
    try:
        read = _loaded(value)
    except (ValueError, RecursionError):
        return not_json(value)
    if isinstance(read, str):
        # Vercel's AI SDK encodes arguments that are not JSON as a JSON string.
        return not_json(read)
    return read if isinstance(read, dict) else not_json(value)


class CalledFunction(Body):
    name: str = Field(min_length=1)
    arguments: Annotated[JsonObject, BeforeValidator(read_json)]


class ToolCall(Body):
    """A tool call of an assistant message. `index` is a remnant of a stream's deltas."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int | None, WithoutEffect("the place in the list is the index")] = None


class PredictedPart(Body):
    type: Literal["text"]
    text: str


class Prediction(Body):
    """What the client expects of the answer: an edited file, most of which stays."""

    bulk = ("content",)

    type: Literal["content"]
    content: Annotated[Listed[PredictedPart], BeforeValidator(_in_parts)]

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.content])


class ChatMessage(Body):
    """A message as chat templates take it. `developer` is OpenAI's newer name for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Listed[_Part] | None, BeforeValidator(_in_parts), MEDIA] = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """vLLM's newer name for `reasoning_content`."""
    refusal: str | None = None
    # The official client adds it, as null, to every message that it parses.
    annotations: Annotated[Listed[Any] | None, Refused("the model writes no annotations", neutral=([],))] = (
        None
    )
    audio: Annotated[Any, Refused("the model writes text only")] = None
    provider_specific_fields: Annotated[
        JsonObject | None, WithoutEffect("litellm's own data, which it sends back with an answer")
    ] = None
    function_call: Annotated[Any, Refused("deprecated: use tool_calls")] = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and not (self.tool_calls or self.thoughts or self.refusal):
            raise ValueError("a message needs content, tool_calls, reasoning or a refusal")
        return self

    @property
    def thoughts(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def blocks(self) -> list[str]:
        """Return the text of each part."""
        parts = spoken(self.content or ())
        return [*parts, self.refusal] if self.refusal else parts
