"""Chat messages as OpenAI's clients write them, and as they send this server's answers back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from pydantic import BeforeValidator, Field, StrictBool, model_validator

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


MEDIA = Partly("the model reads text only; other content becomes a line of text")
Unread: TypeAlias = Annotated[Any, WithoutEffect("the server does not read it")]


def _noted(value: Any, name: str, of: Callable[[str], str]) -> str | None:
    """Return the description of media: of a text, or of the member that has it. The data is freed with the
    body's own text."""
    if isinstance(value, dict):
        return _noted(value.get(name), "", of)
    return of(value) if isinstance(value, str) else None


def _media(name: str, of: Callable[[str], str]) -> Any:
    return BeforeValidator(partial(_noted, name=name, of=of), json_schema_input_type=str | dict[str, Any])


_Url: TypeAlias = Annotated[str | None, _media("url", media.of_url)]
_TEXTS = frozenset(("text", "refusal", "input_text", "output_text", "reasoning_text", "summary_text"))
_NOUNS = {
    **dict.fromkeys(("image_url", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("file", "input_file"), "document"),
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
}
"""Types of parts that a text model cannot read, of both of OpenAI's APIs and vLLM's -> what they are."""


class Part(Body):
    """A part of content: its text, or a line in the place of what a text model cannot read."""

    type: Any = None
    text: HistoryText | None = None
    refusal: HistoryText | None = None
    image_url: _Url = None
    video_url: _Url = None
    audio_url: _Url = None
    file_url: _Url = None
    input_audio: Annotated[str | None, _media("data", media.of_data)] = None
    file_data: Annotated[str | None, _media("", media.of_file)] = None
    filename: HistoryText | None = None
    file_id: Unread = None
    detail: Unread = None
    annotations: Unread = None
    logprobs: Unread = None

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        """Read chat's nested file, and of a type that is not known its text or a line."""
        kind = value.get("type") if isinstance(value, dict) else "text"
        if isinstance(kind, str) and kind in _TEXTS:
            return value
        if isinstance(kind, str) and kind in _NOUNS:
            return {"type": kind, **value["file"]} if isinstance(value.get("file"), dict) else value
        name_unread(value, kind)
        text = value.get("text")
        return {"text": text if isinstance(text, str) else line(value)}

    @property
    def is_text(self) -> bool:
        return self.type in _TEXTS

    @property
    def as_text(self) -> str:
        if (noun := _NOUNS.get(self.type)) is None:
            return self.text or self.refusal or ""
        given = (self.image_url, self.video_url, self.audio_url, self.input_audio, self.file_data)
        what = next(filter(None, (*given, self.file_url)), "")
        return media.note(noun, what, self.filename)


def spoken(parts: Sequence[Part]) -> list[str]:
    """Return the text of each part; a line about media stands on a line of its own."""
    texts: list[str] = []
    after_text = True
    for part in parts:
        text = part.as_text
        noted = not (part.is_text and after_text)
        if texts and noted and text and texts[-1] and not texts[-1].endswith("\n"):
            text = "\n" + text
        texts.append(text)
        after_text = part.is_text
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


class ToolCall(Body):
    """A tool call of an assistant message, as templates know calls: a custom tool's has one text. `index`
    is a remnant of a stream's deltas."""

    id: HistoryId | None = None
    type: Annotated[Any, WithoutEffect("the member that is there says what is called")] = None
    function: CalledFunction = CalledFunction()
    index: Annotated[Any, WithoutEffect("the place in the list is the index")] = None

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        """Read a call without a function's member: what it has beside `type`, or below it."""
        if not isinstance(value, dict) or value.get("function"):
            return value
        kind, custom = value.get("type"), value.get("custom")
        if isinstance(custom, dict) and custom:
            text = custom.get("input", "")
            asked = {"input": text if isinstance(text, str) else json_of(text)}
            return {"id": value.get("id"), "function": {"name": custom.get("name"), "arguments": asked}}
        inner = value.get(kind) if isinstance(kind, str) else None
        members = inner if isinstance(inner, dict) else value
        around = {name: members[name] for name in members if name not in ("id", "type", "index", "name")}
        arguments = around.get("arguments", around)
        name = members.get("name") or (kind if kind != "function" else None)
        return {"id": value.get("id"), "function": {"name": name, "arguments": arguments}}

    @property
    def neutral(self) -> dict[str, Any]:
        """Return the call as chat templates take it."""
        whose = {} if self.id is None else {"id": self.id}
        called = {"name": self.function.name, "arguments": self.function.arguments}
        return {**whose, "type": "function", "function": called}


_OF_HISTORY = "it tells of the conversation, and chat templates have no field for it"
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
_REASONING_ID = "rs_"
"""How the id of a reasoning item of Responses begins."""


def _old_call(value: Any) -> ToolCall | None:
    return ToolCall.model_validate({"function": value}) if isinstance(value, dict) and value else None


class ChatMessage(Body):
    """A message as chat templates take it. `developer` is OpenAI's newer name for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Listed[Part] | None, BeforeValidator(in_parts), MEDIA] = None
    name: Annotated[str | None, BeforeValidator(lambda name: name if isinstance(name, str) else None)] = None
    tool_call_id: HistoryId | None = None
    tool_calls: Annotated[Listed[ToolCall] | None, BeforeValidator(_listed_calls)] = None
    reasoning_content: HistoryText | None = None
    reasoning: HistoryText | None = None
    """vLLM's newer name for `reasoning_content`."""
    refusal: HistoryText | None = None
    prefix: Annotated[StrictBool, BeforeValidator(lambda given: given is True)] = False
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
