"""The tools of a responses body: what each becomes in the prompt, and how a call of it is reported.

Chat templates know functions only. So a tool that clients run is a function with the parameters that the API
knows; one that only the provider runs is left out, and named to the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias, assert_never

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError

from api.bodies.body import Body
from api.bodies.fields import WithoutEffect
from api.dialects.foreign import name_unread
from api.dialects.openai import tools as openai_tools
from api.dialects.openai.structured import MAX_GRAMMAR_CHARACTERS
from api.dialects.openai.tools import MAX_TOOLS, LeftOut
from scheduler.errors import InvalidRequest
from scheduler.request import Tool
from scheduler.structure import Pattern, Rules

_ONLY_THE_MODEL = "only the model calls tools"
_ALL_OFFERED = "the server has no tool search, and offers every tool from the start"
_Callers = Annotated[Any, WithoutEffect(_ONLY_THE_MODEL)]
_Deferred = Annotated[Any, WithoutEffect(_ALL_OFFERED)]

CallKind = Literal["function", "custom"]


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


def _kind(value: Any, *known: str) -> str:
    """Return the tag of a tool: its type, which a function may omit, or `other` for what is left out."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", "other")
    return "function" if kind is None else kind if kind in known else "other"


class FunctionTool(openai_tools.FunctionTool):
    """A function that the client runs."""

    defer_loading: _Deferred = None
    allowed_callers: _Callers = None
    output_schema: Annotated[Any, WithoutEffect("chat templates have no field for it")] = None

    def offer(self, place: str) -> Offer:
        tool = self.neutral(place)
        return Offer(tool, Called("function", tool.name))


_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "the text, as it is"}},
    "required": ["input"],
    "additionalProperties": False,
}


class TextFormat(Body):
    type: Literal["text"]


class GrammarFormat(Body):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)


class CustomTool(Body):
    """A tool that the client runs, called with one text, which may have to match a grammar."""

    type: Literal["custom"]
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    format: Annotated[TextFormat | GrammarFormat, Discriminator("type")] | None = None
    defer_loading: _Deferred = None
    allowed_callers: _Callers = None

    def offer(self, place: str) -> Offer:
        """Offer it as a function with one text, `input`."""
        called, exact = Called("custom", self.name), f"{place}.format"
        if not isinstance(self.format, GrammarFormat):
            return Offer(Tool(self.name, self.description or "", _INPUT, place=exact), called)
        definition, exact = self.format.definition, f"{exact}.definition"
        is_lark = self.format.syntax == "lark"
        what = "Lark grammar" if is_lark else "regular expression"
        rule = f"`input` matches this {what}:\n{definition}"
        tool = Tool(
            self.name,
            "\n\n".join(filter(None, (self.description, rule))),
            _INPUT,
            strict=True,
            place=exact,
            text=Rules(definition, exact) if is_lark else Pattern(definition, exact),
        )
        return Offer(tool, called)


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
                Discriminator(lambda value: _kind(value, "function", "custom")),
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


AnyTool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[LeftOut, Tag("other")],
    Discriminator(lambda value: _kind(value, "function", "custom", "namespace")),
]


def offers(tools: Sequence[AnyTool] | None, place: str = "tools") -> list[Offer]:
    """Return the tools of the prompt."""
    found: list[Offer] = []
    for i, tool in enumerate(tools or ()):
        match tool:
            case NamespaceTool():
                found.extend(tool.offers(f"{place}.{i}"))
            case FunctionTool() | CustomTool():
                found.append(tool.offer(f"{place}.{i}"))
            case dict():
                pass
            case _:
                assert_never(tool)
    return found


@dataclass(frozen=True)
class Offered:
    """The tools of a prompt, by the model's names of them."""

    by_name: Mapping[str, Offer]

    @classmethod
    def of(cls, tools: Sequence[AnyTool] | None, added: Iterable[Sequence[AnyTool]] = ()) -> Offered:
        """`added`: what items of the conversation add, in order; a later tool takes the place of an earlier
        one of its name. Raise InvalidRequest for too many."""
        every = [*offers(tools), *(offer for one in added for offer in offers(one, "input.tools"))]
        by_name = {offer.tool.name: offer for offer in every}
        if len(by_name) > MAX_TOOLS:
            raise InvalidRequest(f"tools: more than {MAX_TOOLS}, with those in input", param="tools")
        return cls(by_name)

    @property
    def tools(self) -> list[Tool]:
        return [offer.tool for offer in self.by_name.values()]

    @property
    def called(self) -> dict[str, Called]:
        """Return how the client knows each tool."""
        return {name: offer.called for name, offer in self.by_name.items()}

    def chosen(self, name: str) -> str:
        """Return the prompt's name of the tool that the client calls `name`. Those of a namespace have names
        of their own, which are enough if only one has it."""
        if name in self.by_name:
            return name
        inner = [whole for whole, offer in self.by_name.items() if offer.called.name == name]
        return inner[0] if len(inner) == 1 else name


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
