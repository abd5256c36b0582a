"""The items of a response's input, as clients write them and as they send a server's output back.

They tell of the conversation. So calls and results of every type are read as calls and results, and what has
no meaning for a text model becomes a line of text, or is left out and named: never a refusal, which would
come back with every later turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly, WithoutEffect, unsupported
from api.dialects.foreign import line, name_unread, with_known_role
from api.dialects.openai.messages import (
    MEDIA,
    CalledName,
    HistoryId,
    Part,
    in_parts,
    json_of,
    read_json,
    spoken,
)
from api.dialects.openai.tools import MAX_TOOLS
from api.dialects.responses.tools import AnyTool, own_parameters, qualified, readable_tools


def _content(value: Any) -> Any:
    """Return content as a list of parts. Results are also objects of the client's own: their JSON text."""
    if isinstance(value, dict) and value and "type" not in value:
        return in_parts(json_of(value))
    if isinstance(value, bool | int | float):
        return in_parts(json_of(value))
    if isinstance(value, list) and any(not isinstance(part, dict) or "type" not in part for part in value):
        texts = all(
            isinstance(part, str | None) or (isinstance(part, dict) and "type" in part) for part in value
        )
        return in_parts(value if texts else json_of(value))
    return in_parts(value)


_Parts = Annotated[Listed[Part], BeforeValidator(_content, json_schema_input_type=str | list[Part]), MEDIA]


def joined_text(parts: Sequence[Part] | None) -> str:
    return "".join(spoken(parts or ()))


_ROLES = frozenset(("user", "assistant", "system", "developer", "tool"))


class _Item(Body):
    type: Any = None
    id: Annotated[Any, WithoutEffect("the server identifies items by their place in the list")] = None
    status: Annotated[Any, WithoutEffect("the server reads items of every status alike")] = None


class Message(_Item):
    role: str
    content: _Parts = Field(default_factory=list)
    phase: Annotated[Any, WithoutEffect("chat templates have no field for it")] = None

    @model_validator(mode="before")
    @classmethod
    def _of_any_role(cls, value: Any) -> Any:
        return with_known_role(value, _ROLES)


_OUTCOMES = ("output", "outputs", "results", "error")
"""Members with which a provider's own call says what came of it."""
_OF_NO_CALL = frozenset(
    (
        *_OUTCOMES,
        "id",
        "call_id",
        "type",
        "status",
        "name",
        "namespace",
        "caller",
        "created_by",
        "server_label",
    )
)
_ACTIONS = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}


class _CallItem(_Item):
    call_id: HistoryId = None
    caller: Annotated[Any, WithoutEffect("only the model calls tools")] = None


class Call(_CallItem):
    """A call of any type. Templates know functions: the API's own tools are those that the prompt offers."""

    name: CalledName
    arguments: Annotated[JsonObject, BeforeValidator(read_json)] = Field(default_factory=dict)
    namespace: Annotated[str | None, BeforeValidator(lambda given: given or None)] = None
    outcome: _Parts | None = None
    """The result, where it is in the call's own item."""

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        if kind == "function_call":
            return value if value.get("name") else {**value, "name": ""}
        outcomes = [value[name] for name in _OUTCOMES if value.get(name) is not None]
        call_id = value.get("call_id") or value.get("id")
        return {
            "call_id": call_id,
            "name": value.get("name") or str(kind).removesuffix("_call"),
            "namespace": value.get("namespace") or value.get("server_label"),
            "arguments": _arguments_of(kind, value),
            "outcome": outcomes[0] if outcomes else None,
        }

    @property
    def offered_name(self) -> str:
        """Return the name under which the prompt offers the function to the model."""
        return self.name if self.namespace is None else qualified(self.namespace, self.name)


def _arguments_of(kind: Any, value: dict[str, Any]) -> Any:
    if kind == "custom_tool_call":
        text = value.get("input")
        return {"input": text if isinstance(text, str) else "" if text is None else json_of(text)}
    if isinstance(asked := value.get(_ACTIONS.get(kind, "")), dict):
        known = own_parameters(str(kind).removesuffix("_call"))
        return {name: asked[name] for name in known if asked.get(name) is not None}
    if "arguments" in value:
        return value["arguments"]
    return {name: given for name, given in value.items() if name not in _OF_NO_CALL and given is not None}


_Added = Annotated[
    Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)],
    BeforeValidator(readable_tools, json_schema_input_type=list[AnyTool]),
]


class Result(_CallItem):
    """The result of a call of any type; of a search for tools those that it found."""

    output: _Parts = Field(default_factory=list)
    name: Annotated[Any, WithoutEffect("the function_call item has it")] = None
    namespace: Annotated[Any, WithoutEffect("the function_call item has it")] = None
    tools: _Added = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("type") == "function_call_output":
            return value
        output, found = value.get("output"), value.get("tools")
        if value.get("type") == "tool_search_output" and isinstance(found, list):
            names = [tool.get("name") for tool in found if isinstance(tool, dict)]
            output = "Found: " + ", ".join(name for name in names if isinstance(name, str))
        else:
            found = None
        if output is None:
            # A tool that only says whether it worked, or one that has other members than an output.
            output = {name: value[name] for name in value if name not in _OF_NO_CALL} or value.get("status")
        return {
            "type": value.get("type"),
            "call_id": value.get("call_id") or value.get("id"),
            "output": output,
            "tools": found,
        }


class AddedTools(Body):
    """Tools that the model has from here on. Newer versions of Codex send all of theirs so."""

    type: Any = None
    tools: _Added = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        return {"tools": value.get("tools")} if isinstance(value, dict) else value


_OURS = "penstock:"


def sealed(text: str) -> str:
    """Return what clients send back as it is, and show to nobody."""
    return _OURS + text


def sealed_text(content: Any) -> str | None:
    """Return the text in `encrypted_content` that a server like this one made."""
    return content.removeprefix(_OURS) if isinstance(content, str) and content.startswith(_OURS) else None


class ReasoningItem(_Item):
    summary: Annotated[Any, WithoutEffect("the reasoning itself is in the other two")] = None
    content: _Parts | None = None
    encrypted_content: Annotated[Any, Partly("another provider's is not read")] = None

    @property
    def text(self) -> str:
        own = sealed_text(self.encrypted_content)
        return joined_text(self.content) if own is None else own


class ItemReference(Body):
    """An item of a stored response, by its id."""

    type: Any = "item_reference"
    id: str


class Remark(Body):
    """Whatever else is in a conversation: one line of text, or nothing."""

    type: Any = None
    line: str

    @model_validator(mode="before")
    @classmethod
    def _of_any_type(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.get("type") == "compaction_trigger":
            raise unsupported("the server summarizes no conversations: ask for a summary, and send that")
        name_unread(value, value.get("type"))
        return {"line": line(value)}


def _kind(value: Any) -> str:
    """Return the tag of an item by its type, which messages and references may omit."""
    if not isinstance(value, dict):
        return "message"
    kind = value.get("type")
    if not kind:
        if value.get("role") is not None:
            return "message"
        return "item_reference" if value.keys() <= {"type", "id"} and "id" in value else "other"
    if kind in ("message", "function_call", "reasoning", "item_reference", "additional_tools"):
        return str(kind)
    if not isinstance(kind, str):
        return "other"
    if kind.endswith("_call"):
        has_result = any(value.get(name) is not None for name in ("call_id", *_OUTCOMES))
        return "function_call" if has_result or kind == "local_shell_call" else "other"
    if kind.endswith("_output"):
        return "function_call_output"
    return "message" if value.get("role") is not None and value.get("content") is not None else "other"


InputItem: TypeAlias = Message | Call | Result | ReasoningItem | ItemReference | AddedTools | Remark
TaggedItem = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[Call, Tag("function_call")]
    | Annotated[Result, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[AddedTools, Tag("additional_tools")]
    | Annotated[Remark, Tag("other")],
    Discriminator(_kind),
]


def as_items(value: Any) -> Any:
    """Accept a string as one user message."""
    if isinstance(value, list) and any(isinstance(item, str) for item in value):
        return [{"role": "user", "content": item} if isinstance(item, str) else item for item in value]
    return [{"role": "user", "content": value}] if isinstance(value, str) else value
