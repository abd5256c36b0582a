"""The tools of an OpenAI body, and the tool choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag, model_validator

from api.bodies.body import Body
from api.bodies.fields import JsonObject, Partly, unsupported
from api.dialects.foreign import name_unread
from scheduler.request import Tool, ToolChoice

MAX_TOOLS = 1024

STRICT = Partly(
    "a grammar enforces it in every dialect of calls but muse_spark, where the server converts arguments"
)


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


def _kind(value: Any) -> str:
    """Return the tag of a tool: a function, or `other` for what is left out."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", "other")
    return "function" if kind in (None, "function") else "other"


AnyTool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[LeftOut, Tag("other")], Discriminator(_kind)
]


def offered(tools: Sequence[AnyTool] | None) -> list[Tool]:
    return [tool.neutral(f"tools.{i}") for i, tool in enumerate(tools or ()) if not isinstance(tool, dict)]


class NamedTool(Body):
    """Chat completions nest the name one level deeper than responses do; both forms are accepted."""

    type: Literal["function", "custom"]
    name: str


_MODES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_TYPES = {"tool": "function", None: "function"}
"""Other APIs' words: Anthropic's for one tool, and none."""


def _choice(value: Any) -> Any:
    if value is None or isinstance(value, NamedTool):
        return value
    if not isinstance(value, dict):
        if isinstance(value, str) and value in _MODES:
            return _MODES[value]
        raise ValueError("send 'auto', 'none', 'required' or an object that names a tool")
    kind = value.get("type")
    kind = _TYPES.get(kind, kind) if kind is None or isinstance(kind, str) else str(kind)
    if kind in _MODES:
        return _MODES[kind]
    if kind not in ("function", "custom"):
        raise unsupported(f"{kind!r} is no choice here; 'function' names one tool")
    around = {name: given for name, given in value.items() if name != kind}
    inner = value.get(kind)
    return {**around, **(inner if isinstance(inner, dict) else {}), "type": kind}


def _choice_kind(value: Any) -> str:
    return "mode" if isinstance(value, str) else "tool"


Choice: TypeAlias = Annotated[
    Annotated[
        Annotated[Literal["auto", "none", "required"], Tag("mode")] | Annotated[NamedTool, Tag("tool")],
        Discriminator(_choice_kind),
    ],
    BeforeValidator(_choice, json_schema_input_type=Literal["auto", "none", "required"] | dict[str, Any]),
]
CHOICE = Partly("a required call needs a dialect of calls that a grammar can hold: all but muse_spark")


def chosen(choice: str | NamedTool | None) -> tuple[ToolChoice, str | None]:
    """Return whether a tool must be called, and the client's name of the one that must."""
    if isinstance(choice, NamedTool):
        return ToolChoice.REQUIRED, choice.name
    return ToolChoice.AUTO if choice is None else ToolChoice(choice), None
