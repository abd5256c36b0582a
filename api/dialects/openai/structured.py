"""Structured output: constraints on an answer's text, in every server's fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, model_validator

from api.bodies import json_text
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Partly, WithoutEffect
from api.bodies.unsupported import STRUCTURED_OUTPUTS
from api.dialects.openai.thinking import Effort
from api.dialects.spellings import CONSTRAINT, SpelledFields
from scheduler.structure import ANY_OBJECT, JsonText, Structure, WhiteSpace

MAX_TEXTS = 4096
MAX_TEXT_CHARACTERS = 4096
MAX_GRAMMAR_CHARACTERS = 256 * 1024
MAX_WHITE_SPACE_CHARACTERS = 256
"""Bound on the pattern's length, not on what it matches."""


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
WhiteSpacePattern = Annotated[str, Field(max_length=MAX_WHITE_SPACE_CHARACTERS)]
Texts = Annotated[
    list[Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]],
    Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True),
]
SchemaOrText = Annotated[
    JsonObject, BeforeValidator(_read_schema, json_schema_input_type=dict[str, Any] | str)
]


class TextFormat(Body):
    type: Literal["text"]

    def structure(self, place: str) -> Structure | None:
        return None


class JsonObjectFormat(Body):
    """Any object or, for llama.cpp's clients, one that matches `schema`."""

    type: Literal["json_object"]
    schema_: JsonObject | None = Field(default=None, alias="schema")

    def structure(self, place: str) -> Structure | None:
        return _json_text(self.schema_, place, f"{place}.schema")


class NamedSchema(Body):
    name: Annotated[str | None, WithoutEffect("chat templates have no field for it")] = None
    description: Annotated[str | None, WithoutEffect("chat templates have no field for it")] = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: Annotated[
        StrictBool | None,
        Partly("true: what a grammar cannot hold is refused; otherwise it is left out, and the rest holds"),
    ] = None
    """Whether a keyword that a grammar cannot hold is refused; otherwise it is left out, and others hold."""


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema

    @model_validator(mode="before")
    @classmethod
    def _may_be_flat(cls, value: Any) -> Any:
        if isinstance(value, dict) and "schema" in value and value.get("json_schema") is None:
            return {"type": value.get("type"), "json_schema": {**value, "type": None}}
        return value

    def structure(self, place: str) -> Structure | None:
        named = self.json_schema
        return _json_text(named.schema_, place, f"{place}.json_schema.schema", exact=bool(named.strict))


class FlatJsonSchemaFormat(NamedSchema):
    """The responses API's form."""

    type: Literal["json_schema"]

    def structure(self, place: str) -> Structure | None:
        return _json_text(self.schema_, f"{place}.schema", f"{place}.schema", exact=bool(self.strict))


class SchemaFormat(FlatJsonSchemaFormat):
    """Anthropic's, which has no other, and is always strict there."""

    schema_: JsonObject = Field(alias="schema")

    def structure(self, place: str) -> Structure | None:
        return JsonText(self.schema_, f"{place}.schema", exact=self.strict is not False)


def _json_text(schema: Any, any_place: str, place: str, *, exact: bool = True) -> JsonText:
    return JsonText(ANY_OBJECT, any_place) if schema is None else JsonText(schema, place, exact=exact)


NO_VERBOSITY = WithoutEffect(
    "a wish, which agents send with every request; the model has no setting for it", named_unless=("medium",)
)
ResponseFormat: TypeAlias = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Discriminator("type")]
FlatFormat: TypeAlias = Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Discriminator("type")]


class TextOptions(Body):
    """The responses API's place of the format."""

    format: FlatFormat | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, NO_VERBOSITY] = None


class OutputConfig(Body):
    """Anthropic's place of the format and of the effort."""

    effort: Effort = None
    format: SchemaFormat | None = None


class StructuredOutputs(Body):
    """vLLM's constraints: one of the first five fields, or white space for the JSON that `response_format`
    asks for."""

    unsupported = STRUCTURED_OUTPUTS

    json_: SchemaOrText | None = Field(default=None, alias="json")
    regex: GrammarText | None = None
    choice: Texts | None = None
    grammar: GrammarText | None = None
    json_object: StrictBool | None = None
    disable_any_whitespace: StrictBool = False
    whitespace_pattern: WhiteSpacePattern | None = None

    def white_space(self) -> WhiteSpace | None:
        """Return the white space allowed between the tokens of JSON, or None if the body does not say. Raise
        ValueError if it asks both for none and for some."""
        if self.disable_any_whitespace:
            if self.whitespace_pattern:
                raise ValueError(
                    "structured_outputs: send disable_any_whitespace or whitespace_pattern, not both"
                )
            return WhiteSpace("", "structured_outputs.disable_any_whitespace")
        return _white_space(self.whitespace_pattern, "structured_outputs.whitespace_pattern")


def _named_or_absent(value: Any) -> Any:
    return None if value == "" else value


class StructuredFields(SpelledFields):
    """The fields of a body that constrain the answer's text, of every server (`dialects/spellings.py`)."""

    response_format: ResponseFormat | None = None
    text: TextOptions | None = None
    output_config: OutputConfig | None = None
    output_format: SchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Texts | None = None
    guided_grammar: GrammarText | None = None
    guided_whitespace_pattern: WhiteSpacePattern | None = None
    json_schema: SchemaOrText | None = None
    grammar: GrammarText | None = None
    regex: GrammarText | None = None
    ebnf: GrammarText | None = None
    format: Annotated[Literal["json"] | JsonObject | None, BeforeValidator(_named_or_absent)] = None

    @model_validator(mode="after")
    def _has_a_constraint(self) -> StructuredFields:
        structure(self)
        return self


def structure(body: StructuredFields) -> Structure | None:
    """Return the constraint. Raise ValueError for `structured_outputs` that have none."""
    asked = CONSTRAINT.value_of(body)
    white_space = _white_space(body.guided_whitespace_pattern, "guided_whitespace_pattern")
    if (vllm := body.structured_outputs) is not None:
        white_space = vllm.white_space() or white_space
        if asked is None:
            raise ValueError("structured_outputs: send one of json, regex, choice, grammar and json_object")
    return replace(asked, white_space=white_space) if isinstance(asked, JsonText) else asked


def _white_space(pattern: str | None, place: str) -> WhiteSpace | None:
    return None if pattern is None else WhiteSpace(pattern, place)
