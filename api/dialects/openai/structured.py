"""Structured output: constraints on an answer's text, in the fields of each API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from api.bodies import json_text
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Partly, WithoutEffect
from api.bodies.unsupported import STRUCTURED_OUTPUTS
from api.dialects.openai.thinking import Effort
from api.dialects.spellings import CONSTRAINT, SpelledFields
from scheduler.structure import ANY_OBJECT, JsonText, Structure

MAX_TEXTS = 4096
MAX_TEXT_CHARACTERS = 4096
MAX_GRAMMAR_CHARACTERS = 256 * 1024


def _read_schema(value: Any) -> Any:
    """Accept a schema's JSON text as well as the schema, as vLLM does, and one in the wrapper of
    `response_format`, whose own members would match anything."""
    if isinstance(value, str):
        try:
            value = json_text.decode(value.encode())
        except ValueError as error:
            raise ValueError(f"send a JSON schema, or the JSON text of one: {error}") from error
    if isinstance(value, dict) and "schema" in value and _WRAPPER.issuperset(value):
        return value["schema"]
    return value


_WRAPPER = frozenset({"name", "description", "strict", "schema"})
GrammarText = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]
Texts = Annotated[
    list[Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]],
    Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True),
]
SchemaOrText = Annotated[
    JsonObject, BeforeValidator(_read_schema, json_schema_input_type=dict[str, Any] | str)
]


class NamedSchema(Body):
    name: Annotated[str | None, WithoutEffect("chat templates have no field for it")] = None
    description: Annotated[str | None, WithoutEffect("chat templates have no field for it")] = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: Annotated[
        StrictBool | None,
        Partly("true: what a grammar cannot hold is refused; otherwise it is left out, and the rest holds"),
    ] = None
    """Whether a keyword that a grammar cannot hold is refused; otherwise it is left out, and others hold."""


class Format(NamedSchema):
    """A schema stands beside `type`, as in responses, or below it, as in chat completions. An object may have
    one, too, for llama.cpp's clients."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    def structure(self, place: str) -> Structure | None:
        if self.type == "text":
            return None
        named, inner = (self, "") if self.json_schema is None else (self.json_schema, ".json_schema")
        exact, schema = self.type == "json_object" or bool(named.strict), named.schema_
        if schema is None:
            return JsonText(ANY_OBJECT, place)
        return JsonText(schema, f"{place}{inner}.schema", exact=exact)


class SchemaFormat(NamedSchema):
    """Anthropic's, which has no other, and is always strict there."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")

    def structure(self, place: str) -> Structure | None:
        return JsonText(self.schema_, f"{place}.schema", exact=self.strict is not False)


NO_VERBOSITY = WithoutEffect(
    "a wish, which agents send with every request; the model has no setting for it", named_unless=("medium",)
)


class TextOptions(Body):
    """The responses API's place of the format."""

    format: Format | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, NO_VERBOSITY] = None


class OutputConfig(Body):
    """Anthropic's place of the format and of the effort."""

    effort: Effort = None
    format: SchemaFormat | None = None


class StructuredOutputs(Body):
    """vLLM's constraints: one of these."""

    unsupported = STRUCTURED_OUTPUTS

    json_: SchemaOrText | None = Field(default=None, alias="json")
    regex: GrammarText | None = None
    choice: Texts | None = None
    grammar: GrammarText | None = None
    json_object: StrictBool | None = None


class StructuredFields(SpelledFields):
    """The fields of a body that constrain the answer's text (`dialects/spellings.py`)."""

    response_format: Format | None = None
    text: TextOptions | None = None
    output_config: OutputConfig | None = None
    output_format: SchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="after")
    def _has_a_constraint(self) -> StructuredFields:
        structure(self)
        return self


def structure(body: StructuredFields) -> Structure | None:
    """Return the constraint. Raise ValueError for `structured_outputs` that have none."""
    asked = CONSTRAINT.value_of(body)
    if asked is None and body.structured_outputs is not None:
        raise ValueError("structured_outputs: send one of json, regex, choice, grammar and json_object")
    return asked
