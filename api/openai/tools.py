"""The tools of an OpenAI chat body, and which of them may be called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from api.fields import Partly, WithoutEffect, unsupported
from api.openai.messages import Body
from scheduler.request import Tool, ToolChoice

MAX_TOOLS = 1024

_NEEDS_GRAMMAR = (
    "that a tool must be called needs structured output, which this server does not have yet;"
    " 'auto' and 'none' are supported"
)


class FunctionDefinition(Body):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, WithoutEffect("arguments are made to fit the schema, not held to it")] = (
        None
    )


class FunctionTool(Body):
    type: Literal["function"]
    function: FunctionDefinition

    def neutral(self) -> Tool:
        function = self.function
        return Tool(
            function.name, function.description or "", function.parameters or {}, bool(function.strict)
        )


def _no_must(value: Any) -> Any:
    if value == "required" or isinstance(value, dict):
        raise unsupported(_NEEDS_GRAMMAR)
    return value


Choice = Annotated[Literal["auto", "none"], BeforeValidator(_no_must)]
CHOICE = Partly("that a tool must be called needs structured output, which is not there yet")


def neutral_choice(choice: str | None) -> ToolChoice:
    return ToolChoice(choice) if choice is not None else ToolChoice.AUTO
