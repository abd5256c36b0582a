"""Structured output: constraints on an answer's text, in OpenAI's fields and in vLLM's."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, model_validator

from api.bodies import json_text
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Refused, WithoutEffect
from scheduler.structure import ANY_OBJECT, JsonText, OneOf, Pattern, Rules, Structure, WhiteSpace

MAX_TEXTS = 4096
MAX_TEXT_CHARACTERS = 4096
MAX_GRAMMAR_CHARACTERS = 256 * 1024
MAX_WHITE_SPACE_CHARACTERS = 256
"""Bound on the pattern's length, not on what it matches."""

_STRICT = "a grammar always enforces the schema"


def _read_schema(value: Any) -> Any:
    """Accept a schema's JSON text as well as the schema, as vLLM does."""
    if not isinstance(value, str):
        return value
    try:
        return json_text.decode(value.encode())
    except ValueError as error:
        raise ValueError(f"send a JSON schema, or the JSON text of one: {error}") from error


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


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    name: Annotated[str | None, WithoutEffect("chat templates have no field for it")] = None
    description: Annotated[str | None, WithoutEffect("chat templates have no field for it")] = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: Annotated[StrictBool | None, WithoutEffect(_STRICT)] = None


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatJsonSchemaFormat(NamedSchema):
    """The responses API's form."""

    type: Literal["json_schema"]


ResponseFormat: TypeAlias = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Discriminator("type")]
FlatFormat: TypeAlias = Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Discriminator("type")]


class StructuredOutputs(Body):
    """vLLM's constraints: one of the first five fields, or white space for the JSON that `response_format`
    asks for."""

    json_: SchemaOrText | None = Field(default=None, alias="json")
    regex: GrammarText | None = None
    choice: Texts | None = None
    grammar: GrammarText | None = None
    json_object: StrictBool | None = None
    disable_any_whitespace: StrictBool = False
    disable_additional_properties: Annotated[
        StrictBool, Refused("set additionalProperties: false in the schema", neutral=(False,))
    ] = False
    whitespace_pattern: WhiteSpacePattern | None = None
    structural_tag: Annotated[str | None, Refused("use tools with strict: true")] = None

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


class StructuredFields(Body):
    """The fields of a body that constrain the answer's text."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Texts | None = None
    guided_grammar: GrammarText | None = None
    guided_whitespace_pattern: WhiteSpacePattern | None = None

    @model_validator(mode="after")
    def _is_held_to_one_thing(self) -> StructuredFields:
        structure(self)
        return self


def structure(body: StructuredFields) -> Structure | None:
    """Return the constraint. Raise ValueError if a body has more than one."""
    asked = _of_format(body.response_format)
    white_space = _white_space(body.guided_whitespace_pattern, "guided_whitespace_pattern")
    if (vllm := body.structured_outputs) is not None:
        place = "structured_outputs."
        asked += _of_vllm(place, vllm.json_, vllm.regex, vllm.choice, vllm.grammar)
        if vllm.json_object:
            asked.append(JsonText(ANY_OBJECT, place + "json_object"))
        white_space = vllm.white_space() or white_space
    asked += _of_vllm("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)
    if vllm is not None and not asked:
        raise ValueError("structured_outputs: send one of json, regex, choice, grammar and json_object")
    if len(asked) > 1:
        raise ValueError(" and ".join(one.place for one in asked) + ": send only one of them")
    if asked and isinstance(asked[0], JsonText):
        return replace(asked[0], white_space=white_space)
    return asked[0] if asked else None


def _white_space(pattern: str | None, place: str) -> WhiteSpace | None:
    return None if pattern is None else WhiteSpace(pattern, place)


def _of_vllm(
    prefix: str, schema: Any, regex: str | None, choice: list[str] | None, grammar: str | None
) -> list[Structure]:
    asked: list[Structure] = []
    if schema is not None:
        asked.append(JsonText(schema, f"{prefix}json"))
    if regex is not None:
        asked.append(Pattern(regex, f"{prefix}regex"))
    if choice is not None:
        asked.append(OneOf(tuple(choice), f"{prefix}choice"))
    if grammar is not None:
        asked.append(Rules(grammar, f"{prefix}grammar"))
    return asked


def _of_format(asked: ResponseFormat | None) -> list[Structure]:
    match asked:
        case JsonObjectFormat():
            return [JsonText(ANY_OBJECT, "response_format")]
        case JsonSchemaFormat(json_schema=NamedSchema(schema_=schema)):
            return [JsonText(ANY_OBJECT if schema is None else schema, "response_format.json_schema.schema")]
        case TextFormat() | None:
            return []


def flat_structure(asked: FlatFormat | None) -> Structure | None:
    """Return the constraint of a responses body's `text.format`."""
    match asked:
        case JsonObjectFormat():
            return JsonText(ANY_OBJECT, "text.format")
        case FlatJsonSchemaFormat(schema_=schema):
            return JsonText(ANY_OBJECT if schema is None else schema, "text.format.schema")
        case TextFormat() | None:
            return None
