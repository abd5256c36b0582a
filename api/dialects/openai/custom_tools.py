"""Custom tools: the client's own, called with one text, which may have to match a grammar."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field

from api.bodies.body import Body
from api.dialects.openai.structured import MAX_GRAMMAR_CHARACTERS
from scheduler.request import Tool
from scheduler.structure import Pattern, Rules

_PARAMETERS = {
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


def as_function(name: str, description: str | None, asked: InputFormat | None, place: str) -> Tool:
    """Return a custom tool as a function with one text, `input`. `place`: the path of its format."""
    if not isinstance(asked, GrammarFormat):
        return Tool(name, description or "", _PARAMETERS, place=place)
    exact = f"{place}.definition"
    is_lark = asked.syntax == "lark"
    what = "Lark grammar" if is_lark else "regular expression"
    rule = f"`input` matches this {what}:\n{asked.definition}"
    return Tool(
        name,
        "\n\n".join(filter(None, (description, rule))),
        _PARAMETERS,
        strict=True,
        place=exact,
        text=Rules(asked.definition, exact) if is_lark else Pattern(asked.definition, exact),
    )
