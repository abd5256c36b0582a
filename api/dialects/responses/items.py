"""The items of a response's input, as clients write them and as they send this server's output back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag

from api.bodies import media
from api.bodies.body import Body
from api.bodies.fields import Listed, Refused, WithoutEffect
from api.dialects.openai.messages import (
    MEDIA,
    AudioPart,
    CalledFunction,
    MediaFile,
    MediaPart,
    MediaUrl,
    Unread,
    spoken,
)

_Status = Annotated[
    Literal["in_progress", "completed", "incomplete"] | None,
    WithoutEffect("the server reads items of every status alike"),
]
_OWN_ID = Annotated[str | None, WithoutEffect("the server identifies items by their place in the list")]
_NO_CALLERS = "only the model calls tools"


class Part(Body):
    """Text of any role."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str | None = None
    refusal: str | None = None
    annotations: Annotated[Listed[Any] | None, WithoutEffect("the model reads the text alone")] = None
    logprobs: Annotated[Listed[Any] | None, WithoutEffect("the model reads the text alone")] = None

    @property
    def as_text(self) -> str:
        return self.text or self.refusal or ""


class InputImage(MediaPart):
    type: Literal["input_image"]
    image_url: MediaUrl | None = None
    file_id: Unread = None
    detail: Unread = None

    @property
    def as_text(self) -> str:
        return media.note("image", self.image_url or "")


class InputFile(MediaPart):
    type: Literal["input_file"]
    file_data: MediaFile | None = None
    file_url: MediaUrl | None = None
    file_id: Unread = None
    filename: str | None = None
    detail: Unread = None

    @property
    def as_text(self) -> str:
        return media.note("document", self.file_data or self.file_url or "", self.filename)


def _in_parts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


_AnyPart: TypeAlias = Annotated[Part | InputImage | InputFile | AudioPart, Discriminator("type")]
_Parts = Annotated[
    Listed[_AnyPart], BeforeValidator(_in_parts, json_schema_input_type=str | list[_AnyPart]), MEDIA
]


def joined_text(parts: Sequence[Part | MediaPart] | None) -> str:
    return "".join(spoken(parts or ()))


class Message(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Parts
    id: _OWN_ID = None
    status: _Status = None
    phase: Annotated[
        Literal["commentary", "final_answer"] | None, WithoutEffect("chat templates have no field for it")
    ] = None


def qualified(namespace: str, name: str) -> str:
    """Combine a function's two names into one that every model's tool-call syntax can write."""
    return f"{namespace}__{name}"


class FunctionCall(Body):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str
    id: _OWN_ID = None
    status: _Status = None
    namespace: str | None = Field(default=None, min_length=1)
    caller: Annotated[Any, Refused(_NO_CALLERS, neutral=({"type": "direct"},))] = None

    @property
    def offered_name(self) -> str:
        """Return the name under which the prompt offers the function to the model."""
        return self.name if self.namespace is None else qualified(self.namespace, self.name)

    def function(self) -> CalledFunction:
        """Raise pydantic.ValidationError if the arguments are not the JSON text of an object."""
        return CalledFunction.model_validate({"name": self.name, "arguments": self.arguments})


class FunctionCallOutput(Body):
    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: _Parts
    id: _OWN_ID = None
    status: _Status = None
    name: Annotated[str | None, WithoutEffect("the function_call item has it")] = None
    namespace: Annotated[str | None, WithoutEffect("the function_call item has it")] = None
    caller: Annotated[Any, Refused(_NO_CALLERS, neutral=({"type": "direct"},))] = None


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: _OWN_ID = None
    summary: Annotated[Listed[Part] | None, WithoutEffect("the reasoning itself is in `content`")] = None
    content: Listed[Part] | None = None
    encrypted_content: Annotated[
        str | None, WithoutEffect("only the provider that encrypted it can read it")
    ] = None
    status: _Status = None


def _kind(value: Any) -> str:
    """Return the item's type, which messages may omit."""
    found = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", "message")
    return found if isinstance(found, str) else "?"


InputItem: TypeAlias = Message | FunctionCall | FunctionCallOutput | ReasoningItem
TaggedItem = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


def as_items(value: Any) -> Any:
    """Accept a string as one user message."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value
