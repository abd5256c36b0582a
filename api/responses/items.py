"""The items of a response's input, as clients write them and as they send this server's output back."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag

from api.fields import Listed, Partly, Refused, WithoutEffect
from api.openai.messages import Body, CalledFunction

_Status = Annotated[
    Literal["in_progress", "completed", "incomplete"] | None, WithoutEffect("an item is what it says")
]
_OWN_ID = Annotated[str | None, WithoutEffect("items go by their place")]
_NO_CALLERS = "the model is the only caller"


class Part(Body):
    """Text of any role. Images and files are refused by type."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str | None = None
    refusal: str | None = None
    annotations: Annotated[Listed[Any] | None, WithoutEffect("they are about the text, not of it")] = None
    logprobs: Annotated[Listed[Any] | None, WithoutEffect("they are about the text, not of it")] = None

    @property
    def said(self) -> str:
        return self.text or self.refusal or ""


def _in_parts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


_Parts = Annotated[
    Listed[Part],
    BeforeValidator(_in_parts, json_schema_input_type=str | list[Part]),
    Partly("text; models here see no pictures"),
]


def said(parts: list[Part] | None) -> str:
    return "".join(part.said for part in parts or ())


class Message(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Parts
    id: _OWN_ID = None
    status: _Status = None
    phase: Annotated[
        Literal["commentary", "final_answer"] | None, WithoutEffect("templates have no place for it")
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
    name: Annotated[str | None, WithoutEffect("the call has it")] = None
    namespace: Annotated[str | None, WithoutEffect("the call has it")] = None
    caller: Annotated[Any, Refused(_NO_CALLERS, neutral=({"type": "direct"},))] = None


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: _OWN_ID = None
    summary: Annotated[Listed[Part] | None, WithoutEffect("the thoughts themselves are in `content`")] = None
    content: Listed[Part] | None = None
    encrypted_content: Annotated[str | None, WithoutEffect("only its provider can read it")] = None
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
