"""The tools of a responses body: what each becomes in the prompt, and how a call of it is reported.

Chat templates know functions only. So a tool that clients run is a function with the parameters that the API
knows; one that only the provider runs is left out, and named to the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, assert_never

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError

from api.bodies.body import Body
from api.bodies.fields import WithoutEffect
from api.dialects.foreign import name_unread
from api.dialects.openai import tools as openai_tools
from api.dialects.openai.tools import BY_TYPE, MAX_TOOLS, LeftOut, tool_kind
from scheduler.errors import InvalidRequest
from scheduler.request import Tool

_ONLY_THE_MODEL = "only the model calls tools"
_ALL_OFFERED = "the server has no tool search, and offers every tool from the start"
_Callers = Annotated[Any, WithoutEffect(_ONLY_THE_MODEL)]
_Deferred = Annotated[Any, WithoutEffect(_ALL_OFFERED)]

CallKind = Literal["function", "custom", "local_shell", "shell", "apply_patch"]


@dataclass(frozen=True, slots=True)
class Called:
    """How the client knows a tool that the model calls."""

    kind: CallKind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool in the prompt."""

    tool: Tool
    called: Called


def qualified(namespace: str, name: str) -> str:
    """Combine a function's two names into one that every model's tool-call syntax can write."""
    return f"{namespace}__{name}"


class FunctionTool(openai_tools.FunctionTool):
    """A function that the client runs."""

    defer_loading: _Deferred = None
    allowed_callers: _Callers = None
    output_schema: Annotated[Any, WithoutEffect("chat templates have no field for it")] = None

    def offer(self, place: str) -> Offer:
        tool = self.neutral(place)
        return Offer(tool, Called("function", tool.name))


class CustomTool(openai_tools.CustomDefinition):
    """A tool that the client runs, called with one text."""

    type: Literal["custom"]
    defer_loading: _Deferred = None
    allowed_callers: _Callers = None

    def offer(self, place: str) -> Offer:
        return Offer(self.neutral(place), Called("custom", self.name))


class OwnTool(Body):
    """A tool of the API's own that clients run: its type is its name."""

    type: Literal["local_shell", "shell", "apply_patch"]
    environment: Annotated[Any, WithoutEffect("the client knows where it runs commands")] = None
    allowed_callers: _Callers = None

    def offer(self, place: str) -> Offer:
        kind = self.type
        return Offer(Tool(kind, _OWN[kind].does, _OWN[kind].parameters, place=place), Called(kind, kind))


_PATCHES = (
    "Creates, updates or deletes one file. `diff` has the lines of the change, each begun by '+' (added), '-'"
    " (removed) or ' ' (unchanged), after a line '@@' that may name what they are in; for a new file all of"
    " its lines, begun by '+'. To delete a file, leave it out."
)
_MILLISECONDS = {"type": "integer", "minimum": 1, "description": "milliseconds"}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


class _Own(NamedTuple):
    does: str
    required: tuple[str, ...]
    properties: dict[str, Any]
    unsent: dict[str, Any]
    """What stands in an item until its call is over, and in one whose call cannot be read."""

    @property
    def parameters(self) -> dict[str, Any]:
        fixed = {"required": list(self.required), "additionalProperties": False}
        return {"type": "object", "properties": self.properties, **fixed}


_OWN: dict[str, _Own] = {
    "local_shell": _Own(
        "Runs one command on the user's machine, and returns what it wrote.",
        ("command",),
        {
            "command": {**_TEXTS, "description": "the program and its arguments"},
            "working_directory": {"type": "string"},
            "timeout_ms": _MILLISECONDS,
        },
        {"type": "exec", "command": [], "env": {}},
    ),
    "shell": _Own(
        "Runs shell commands on the user's machine, and returns what they wrote.",
        ("commands",),
        {
            "commands": {**_TEXTS, "description": "command lines, run in this order"},
            "timeout_ms": _MILLISECONDS,
            "max_output_length": {"type": "integer", "minimum": 1, "description": "characters"},
        },
        {"commands": []},
    ),
    "apply_patch": _Own(
        _PATCHES,
        ("type", "path"),
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string"},
            "diff": {"type": "string"},
        },
        {"type": "update_file", "path": "", "diff": ""},
    ),
}


def own_parameters(kind: str) -> Sequence[str]:
    """Return the names of the parameters of one of the API's own tools."""
    return tuple(_OWN[kind].properties) if kind in _OWN else ()


class NamespaceTool(Body):
    """Tools under a common name (Codex groups its own so). The prompt offers each under both names joined,
    and a call of it is reported with the two."""

    type: Literal["namespace"]
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionTool, Tag("function")]
                | Annotated[CustomTool, Tag("custom")]
                | Annotated[LeftOut, Tag("other")],
                Discriminator(tool_kind),
            ]
        ],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ] = Field(default_factory=list)

    def offers(self, place: str) -> Iterator[Offer]:
        for i, inner in enumerate(self.tools):
            if isinstance(inner, dict):
                continue
            offer = inner.offer(f"{place}.tools.{i}")
            described = "\n\n".join(filter(None, (self.description, offer.tool.description)))
            name = qualified(self.name, offer.tool.name)
            yield Offer(
                replace(offer.tool, name=name, description=described),
                replace(offer.called, namespace=self.name),
            )


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", "other")
    if kind == "shell" and isinstance(value, dict) and isinstance(where := value.get("environment"), dict):
        return "own" if where.get("type") in (None, "local") else "other"
    return kind if kind == "namespace" else "own" if kind in BY_TYPE else tool_kind(value)


AnyTool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[OwnTool, Tag("own")]
    | Annotated[LeftOut, Tag("other")],
    Discriminator(_kind),
]


def offers(tools: Sequence[AnyTool] | None, place: str = "tools") -> list[Offer]:
    """Return the tools of the prompt."""
    found: list[Offer] = []
    for i, tool in enumerate(tools or ()):
        match tool:
            case NamespaceTool():
                found.extend(tool.offers(f"{place}.{i}"))
            case FunctionTool() | CustomTool() | OwnTool():
                found.append(tool.offer(f"{place}.{i}"))
            case dict():
                pass
            case _:
                assert_never(tool)
    return found


def offered(tools: Sequence[AnyTool] | None, added: Iterable[Sequence[AnyTool]] = ()) -> dict[str, Offer]:
    """Return the tools of a prompt by the model's names of them. `added`: what items of the conversation
    add; a later tool takes the place of an earlier one of its name. Raise InvalidRequest for too many."""
    every = [*offers(tools), *(offer for one in added for offer in offers(one, "input.tools"))]
    by_name = {offer.tool.name: offer for offer in every}
    if len(by_name) > MAX_TOOLS:
        raise InvalidRequest(f"tools: more than {MAX_TOOLS}, with those in input", param="tools")
    return by_name


def offered_name(by_name: Mapping[str, Offer], name: str) -> str:
    """Return the prompt's name of the tool that the client calls `name`. Those of a namespace have names of
    their own, which are enough if only one has it."""
    inner = [whole for whole, offer in by_name.items() if offer.called.name == name]
    return inner[0] if name not in by_name and len(inner) == 1 else name


def readable_tools(value: Any) -> list[AnyTool]:
    """Return the tools of an item. What is none that can be read is left out, and named. Raise ValueError for
    more than can be offered."""
    found: list[AnyTool] = []
    if isinstance(value, list) and len(value) > MAX_TOOLS:
        raise ValueError(f"at most {MAX_TOOLS} tools can be offered, not {len(value)}")
    for tool in value if isinstance(value, list) else ():
        try:
            found.append(_any_tool.validate_python(tool))
        except ValidationError:
            if isinstance(tool, dict):
                name_unread(tool, tool.get("type"))
    return found


_any_tool: TypeAdapter[AnyTool] = TypeAdapter(AnyTool)


def sent(tool: AnyTool) -> dict[str, Any]:
    """Return the tool as the client sent it; required fields of a function are present, if null."""
    match tool:
        case FunctionTool(function=definition):
            names = ("name", "description", "parameters", "strict")
            return {"type": "function", **{name: getattr(definition or tool, name) for name in names}}
        case NamespaceTool(type=kind, name=name, description=description, tools=tools):
            inner = [sent(one) for one in tools]
            return {"type": kind, "name": name, "description": description or "", "tools": inner}
        case dict():
            return tool
        case _:
            return given(tool)


def given(body: Body) -> dict[str, Any]:
    """Return the fields that a body has, under their names there, and their values as they are: a dump would
    walk all of them."""
    fields = ((field.alias or name, getattr(body, name)) for name, field in type(body).model_fields.items())
    return {
        name: given(value) if isinstance(value, Body) else value
        for name, value in fields
        if value is not None
    }


def action(kind: CallKind, arguments: str) -> dict[str, Any]:
    """Return what a call of one of the API's own tools is to do, from its arguments."""
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        read = None
    known = own_parameters(kind) if isinstance(read, dict) else ()
    given = {name: read[name] for name in known if name in read}
    match kind:
        case "local_shell" | "shell":
            lines = "command" if kind == "local_shell" else "commands"
            # A model that is not held writes one line as a text.
            if isinstance(one := given.get(lines), str):
                given[lines] = ["sh", "-c", one] if kind == "local_shell" else [one]
        case "apply_patch" if given.get("type") == "delete_file":
            given.pop("diff", None)
            return given
    return {**_OWN[kind].unsent, **given}
