"""The accepted bodies: OpenAI's decisions, and TypeSafe's System One, as gateways send both."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, StrictStr, field_validator

from api.bodies.body import Body
from api.bodies.fields import AtMost, WithoutEffect
from api.bodies.unsupported import SYSTEM_ONE
from api.dialects.decisions.questions import MAX_OPTIONS, Option, Question, statement
from api.dialects.readings import ReadingRequest
from api.dialects.responses.items import Message, as_items, joined_text
from api.dialects.responses.schema import Items

MAX_QUESTIONS = 400
_Accounting: TypeAlias = Annotated[Any, WithoutEffect("for the provider's accounting")]
_Cached: TypeAlias = Annotated[Any, WithoutEffect("every prefix that was read is kept by itself")]


def _json_as_text(content: Any) -> Any:
    """Return a message's content with its parts of JSON as parts of text."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "input_text", "text": _text_of(part["data"])}
        if isinstance(part, dict) and part.get("type") == "input_json" and "data" in part
        else part
        for part in content
    ]


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _items(value: Any) -> Any:
    items = as_items(value)
    if not isinstance(items, list):
        return items
    return [
        {**item, "content": _json_as_text(item["content"])}
        if isinstance(item, dict) and "content" in item
        else item
        for item in items
    ]


def _spoken(value: Any) -> Any:
    """Return the text of an instruction, which may come in parts."""
    if isinstance(value, str):
        return value
    message = Message.model_validate({"role": "user", "content": _json_as_text(value)})
    return joined_text(message.content)


_Instructions: TypeAlias = Annotated[str, BeforeValidator(_spoken), Field(min_length=1)]
_Json: TypeAlias = Annotated[str, BeforeValidator(_text_of)]
"""A text, or JSON of the client's own as its text."""
_Described: TypeAlias = Annotated[
    str, BeforeValidator(lambda value: "" if value is None else _text_of(value))
]
_Name: TypeAlias = Annotated[str, Field(min_length=1)]


class _Asked(Body):
    """A question of OpenAI's."""

    name: str | None = None
    instructions: _Instructions


class Predicate(_Asked):
    type: Literal["predicate"]

    @property
    def question(self) -> Question:
        return statement(self.instructions)


class Choice(Body):
    value: StrictStr | StrictBool
    description: str = ""

    @property
    def option(self) -> Option:
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return Option(text, self.description)


class ChoiceQuestion(_Asked):
    type: Literal["choice"]
    choices: Annotated[list[Choice], Field(min_length=2, max_length=MAX_OPTIONS, fail_fast=True)]

    @field_validator("choices")
    @classmethod
    def _differ(cls, choices: list[Choice]) -> list[Choice]:
        # By type too: true is not "true".
        if len({(type(one.value), one.value) for one in choices}) < len(choices):
            raise ValueError("two choices have one value")
        if any(one.value == "" for one in choices):
            raise ValueError("a choice is empty")
        return choices

    @property
    def question(self) -> Question:
        return Question(self.instructions, tuple(one.option for one in self.choices))


class Level(Body):
    label: str = Field(min_length=1)
    description: str = ""


class ScoreQuestion(_Asked):
    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2, max_length=MAX_OPTIONS, fail_fast=True)]

    @property
    def question(self) -> Question:
        levels = tuple(Option(one.label, one.description) for one in self.levels)
        return Question(self.instructions, levels, is_scale=True)


AnyQuestion: TypeAlias = Annotated[Predicate | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionRequest(ReadingRequest):
    """`POST /v1/decisions`."""

    bulk = ("input",)
    id_prefix = "decision"

    input: Annotated[Items, BeforeValidator(_items), Field(min_length=1)]
    questions: Annotated[list[AnyQuestion], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)]
    prompt_cache_key: _Cached = None
    prompt_cache_options: _Cached = None
    safety_identifier: _Accounting = None


class Noul(Body):
    """TypeSafe's word for a statement: not no, and not null."""

    type: Literal["noul"]
    instructions: _Json = "Is this true of the text above?"
    criteria: Annotated[dict[Literal["true", "false"], _Described], AtMost(2)] = Field(default_factory=dict)

    @property
    def question(self) -> Question:
        return statement(self.instructions, self.criteria.get("true", ""), self.criteria.get("false", ""))


class NamedChoice(Body):
    type: Literal["choice"]
    instructions: _Json = "Which option fits the text above best?"
    criteria: Annotated[dict[_Name, _Described], AtMost(MAX_OPTIONS), Field(min_length=1)]

    @property
    def question(self) -> Question:
        return Question(self.instructions, tuple(Option(*item) for item in self.criteria.items()))


class Scale(Body):
    type: Literal["score"]
    instructions: _Json = "Which level fits the text above best?"
    criteria: Annotated[list[_Json], Field(min_length=1, max_length=MAX_OPTIONS, fail_fast=True)]

    @property
    def question(self) -> Question:
        return Question(self.instructions, tuple(map(Option, self.criteria)), is_scale=True)


NamedQuestion: TypeAlias = Annotated[Noul | NamedChoice | Scale, Field(discriminator="type")]


class SystemOneRequest(ReadingRequest):
    """`POST /v1/systemone`."""

    unsupported = SYSTEM_ONE
    id_prefix = "decision"

    state: Annotated[_Json, Field(min_length=1)]
    questions: Annotated[dict[_Name, NamedQuestion], AtMost(MAX_QUESTIONS), Field(min_length=1)]
