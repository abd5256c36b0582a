"""The tools of an OpenAI body, and the tool choice."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool

from api.bodies.body import Body
from api.bodies.fields import JsonObject, Partly, unsupported
from scheduler.request import Tool, ToolChoice

MAX_TOOLS = 1024

STRICT = Partly(
    "a grammar enforces it in every dialect of calls but muse_spark, where the server converts arguments"
)


class FunctionDefinition(Body):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: Annotated[StrictBool | None, STRICT] = None


class FunctionTool(Body):
    type: Literal["function"]
    function: FunctionDefinition

    def neutral(self, place: str) -> Tool:
        """Return the neutral form. `place` is the path in the body, for errors."""
        function = self.function
        return Tool(
            function.name,
            function.description or "",
            function.parameters or {},
            bool(function.strict),
            f"{place}.function.parameters",
        )


class NamedFunction(Body):
    """Chat completions nest the name one level deeper than responses do; both forms are accepted."""

    type: Literal["function"]
    name: str


_MODES = ("auto", "none", "required")


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        kind = value.get("type")
        if kind != "function":
            raise unsupported(f"the type {kind!r} is unknown; 'function' names one tool")
        if isinstance(function := value.get("function"), dict):
            around = {name: given for name, given in value.items() if name != "function"}
            return {**around, **function, "type": "function"}
        return value
    if value is not None and value not in _MODES:
        raise ValueError("send 'auto', 'none', 'required' or an object that names a function")
    return value


Choice: TypeAlias = Annotated[
    Literal["auto", "none", "required"] | NamedFunction,
    BeforeValidator(_named, json_schema_input_type=Literal["auto", "none", "required"] | dict[str, Any]),
]
CHOICE = Partly("a required call needs a dialect of calls that a grammar can hold: all but muse_spark")


def neutral_choice(choice: str | NamedFunction | None) -> tuple[ToolChoice, str | None]:
    """Return the tool choice, and the one tool that it names."""
    if isinstance(choice, NamedFunction):
        return ToolChoice.REQUIRED, choice.name
    return (ToolChoice.AUTO if choice is None else ToolChoice(choice)), None
