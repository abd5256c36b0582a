"""Chat messages as OpenAI's clients write them, and as they send this server's answers back."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from api import json_text
from api.fields import JsonObject, Listed, Partly, Refused, WithoutEffect


class Body(BaseModel):
    """The base of bodies: undeclared fields are refused by name."""

    # `allow_inf_nan`: Python's JSON parser accepts NaN, which every bound check would let pass.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    _names: ClassVar[frozenset[str]]
    """The names of its fields in a body."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls._names = frozenset(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        # Clients that dump their own models send null in every field that they know.
        if not isinstance(value, dict):
            return value
        if len(value) > len(cls._names):
            value = _with_one_unknown(value, cls._names)
        # Most bodies have no null, and need no copy.
        if None not in value.values():
            return value
        return {name: given for name, given in value.items() if given is not None}

    def release(self) -> None:
        """Drop the conversation, after the decoded request has its own copy: a body of short messages takes a
        model 50 bytes for each byte. Bodies that may be large override it."""


def _with_one_unknown(value: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Keep one unknown name, which is enough to refuse the body. Pydantic would make an error of 800 bytes
    for each."""
    known = {name: value[name] for name in names if name in value}
    unknown = next(name for name in value if name not in names)
    return {**known, unknown: "unknown" if value[unknown] is None else value[unknown]}


class ContentPart(Body):
    """Text; `refusal` is text of an assistant message too."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @property
    def said(self) -> str:
        return self.text or self.refusal or ""

    @model_validator(mode="after")
    def _says_it_where_its_type_says(self) -> ContentPart:
        if (self.text if self.type == "text" else self.refusal) is None:
            raise ValueError(f"a part of type {self.type!r} has a field of that name")
        return self


def _in_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _read_json(value: Any) -> Any:
    """Parse a call's arguments: clients send JSON text, and chat templates take the object."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return {}
    json_text.check_bounds(value.encode(errors="replace"))
    try:
        return json.loads(value, strict=False)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not the JSON text of an object") from error


class CalledFunction(Body):
    name: str = Field(min_length=1)
    arguments: Annotated[JsonObject, BeforeValidator(_read_json)]


class ToolCall(Body):
    """A tool call of an assistant message. `index` is a remnant of a stream's deltas."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int | None, WithoutEffect("the order is the list's")] = None


class ChatMessage(Body):
    """A message as chat templates take it. `developer` is OpenAI's newer name for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Listed[ContentPart] | None, BeforeValidator(_in_parts), Partly("text; models here see no pictures")
    ] = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """vLLM's newer name for `reasoning_content`."""
    refusal: str | None = None
    # The official client adds it, as null, to every message that it parses.
    annotations: Annotated[Listed[Any] | None, Refused("answers here have none", neutral=([],))] = None
    audio: Annotated[Any, Refused("answers here have none")] = None
    provider_specific_fields: Annotated[
        JsonObject | None, WithoutEffect("litellm's notes, which it sends back with an answer")
    ] = None
    function_call: Annotated[Any, Refused("long replaced by tool_calls")] = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and not (self.tool_calls or self.thoughts or self.refusal):
            raise ValueError("a message needs content")
        return self

    @property
    def thoughts(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def blocks(self) -> list[str]:
        """Return the text of each part."""
        parts = [part.said for part in self.content or ()]
        return [*parts, self.refusal] if self.refusal else parts
