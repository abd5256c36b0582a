"""The tools of an OpenAI body, and the tool choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag, model_validator

from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly, unsupported
from api.dialects.foreign import name_unread
from api.dialects.openai.structured import MAX_GRAMMAR_CHARACTERS
from scheduler.errors import InvalidRequest
from scheduler.request import Tool, ToolChoice
from scheduler.structure import Pattern, Rules

MAX_TOOLS = 1024

STRICT = Partly(
    "a grammar enforces it in every notation of calls but muse_spark, where the server converts arguments"
)
BY_TYPE = ("local_shell", "shell", "apply_patch")
"""Tools that clients run, and whose type is their name."""


def left_out(value: Any) -> Any:
    """Name a tool that is not offered to the model: the server cannot run it, or does not know what it is."""
    kind = value.get("type") if isinstance(value, dict) else None
    name_unread(value, kind)
    return value


LeftOut: TypeAlias = Annotated[JsonObject, BeforeValidator(left_out)]


class _Members(Body):
    description: str | None = None
    parameters: JsonObject | None = None
    strict: Annotated[StrictBool | None, STRICT] = None


_Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


class FunctionDefinition(_Members):
    name: _Name


class FunctionTool(_Members):
    """A function. In responses its members stand beside `type`; both APIs take both forms."""

    type: Literal["function"] = "function"
    function: FunctionDefinition | None = None
    name: _Name | None = None

    @model_validator(mode="after")
    def _has_a_name(self) -> FunctionTool:
        if self.function is None and self.name is None:
            raise ValueError("send the function's name, in `function` or beside `type`")
        return self

    def neutral(self, place: str) -> Tool:
        """Return the neutral form. `place` is the path in the body, for errors."""
        given, inner = (self, "") if self.function is None else (self.function, ".function")
        parameters, strict = given.parameters or {}, bool(given.strict)
        exact = f"{place}{inner}.parameters"
        return Tool(given.name or "", given.description or "", parameters, strict, exact)


_ONE_TEXT = {
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


def _flat(value: Any) -> Any:
    """Chat completions nest what responses do not; both forms are accepted."""
    if isinstance(value, dict) and isinstance(inner := value.get("grammar"), dict):
        return {**{name: given for name, given in value.items() if name != "grammar"}, **inner}
    return value


InputFormat: TypeAlias = Annotated[
    Annotated[TextFormat | GrammarFormat, Discriminator("type")],
    BeforeValidator(_flat, json_schema_input_type=dict[str, Any]),
]


def _as_function(name: str, description: str | None, asked: InputFormat | None, place: str) -> Tool:
    """Return a custom tool as a function with one text, `input`. `place`: the path of its format."""
    if not isinstance(asked, GrammarFormat):
        return Tool(name, description or "", _ONE_TEXT, place=place)
    exact = f"{place}.definition"
    is_lark = asked.syntax == "lark"
    what = "Lark grammar" if is_lark else "regular expression"
    rule = f"`input` matches this {what}:\n{asked.definition}"
    return Tool(
        name,
        "\n\n".join(filter(None, (description, rule))),
        _ONE_TEXT,
        strict=True,
        place=exact,
        text=Rules(asked.definition, exact) if is_lark else Pattern(asked.definition, exact),
    )


class CustomDefinition(Body):
    name: _Name
    description: str | None = None
    format: InputFormat | None = None

    def neutral(self, place: str) -> Tool:
        return _as_function(self.name, self.description, self.format, f"{place}.format")


class CustomTool(Body):
    type: Literal["custom"]
    custom: CustomDefinition

    def neutral(self, place: str) -> Tool:
        return self.custom.neutral(f"{place}.custom")


def tool_kind(value: Any) -> str:
    """Return the tag of a tool: its type, or `other` for what is left out."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", "other")
    return "function" if kind is None else kind if kind in ("function", "custom") else "other"


AnyTool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[LeftOut, Tag("other")],
    Discriminator(tool_kind),
]


def offered(tools: Sequence[AnyTool] | None) -> list[Tool]:
    return [tool.neutral(f"tools.{i}") for i, tool in enumerate(tools or ()) if not isinstance(tool, dict)]


class NamedTool(Body):
    """Chat completions nest the name one level deeper than responses do; both forms are accepted."""

    type: Literal["function", "custom", "local_shell", "shell", "apply_patch"]
    name: str


class AllowedTools(Body):
    """The tools that this answer may call. The others are not offered."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Listed[NamedTool]


_MODES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_TYPES = {"tool": "function", None: "function"}
"""Other APIs' words: Anthropic's for one tool, and none."""


def _choice(value: Any) -> Any:
    if value is None or isinstance(value, NamedTool | AllowedTools):
        return value
    if not isinstance(value, dict):
        if isinstance(value, str) and value in _MODES:
            return _MODES[value]
        raise ValueError("send 'auto', 'none', 'required' or an object that names a tool")
    kind = value.get("type")
    kind = _TYPES.get(kind, kind) if kind is None or isinstance(kind, str) else str(kind)
    if kind in _MODES:
        return _MODES[kind]
    if kind in BY_TYPE:
        return {"name": kind, **value}
    if kind not in ("function", "custom", "allowed_tools"):
        raise unsupported(f"the server cannot run {kind!r}; 'function' names one tool")
    around = {name: given for name, given in value.items() if name != kind}
    inner = value.get(kind)
    found = {**around, **(inner if isinstance(inner, dict) else {}), "type": kind}
    if kind == "allowed_tools" and isinstance(tools := found.get("tools"), list):
        found["tools"] = [_choice(tool) for tool in tools if _is_offered(tool)]
    return found


def _is_offered(value: Any) -> bool:
    """Return whether the client runs it: what only a provider runs is in no offer, and in no choice."""
    return not isinstance(value, dict) or value.get("type", "function") in ("function", "custom", *BY_TYPE)


def _choice_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "mode" if kind is None else "allowed_tools" if kind == "allowed_tools" else "tool"


Choice: TypeAlias = Annotated[
    Annotated[
        Annotated[Literal["auto", "none", "required"], Tag("mode")]
        | Annotated[NamedTool, Tag("tool")]
        | Annotated[AllowedTools, Tag("allowed_tools")],
        Discriminator(_choice_kind),
    ],
    BeforeValidator(_choice, json_schema_input_type=Literal["auto", "none", "required"] | dict[str, Any]),
]
CHOICE = Partly("a required call needs a notation of calls that a grammar can hold: all but muse_spark")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a tool choice makes of the tools."""

    mode: ToolChoice
    only: str | None
    """The one tool that must be called."""
    tools: tuple[Tool, ...]


def chosen(
    choice: str | NamedTool | AllowedTools | None,
    tools: Sequence[Tool],
    offered_name: Callable[[str], str],
) -> Chosen:
    """`offered_name`: the prompt's name for a client's. Raise InvalidRequest for an allowed tool that is not
    there."""
    match choice:
        case NamedTool(name=name):
            return Chosen(ToolChoice.REQUIRED, offered_name(name), tuple(tools))
        case AllowedTools(mode=mode, tools=allowed):
            names = {offered_name(tool.name) for tool in allowed}
            if missing := names - {tool.name for tool in tools}:
                raise InvalidRequest(
                    f"tool_choice: none of the tools is named {min(missing)!r}", param="tool_choice"
                )
            return Chosen(ToolChoice(mode), None, tuple(tool for tool in tools if tool.name in names))
        case _:
            return Chosen(ToolChoice.AUTO if choice is None else ToolChoice(choice), None, tuple(tools))
