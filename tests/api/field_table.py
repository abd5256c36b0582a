"""The tables of fields in `api/FIELDS.md`, generated from the schemas: `python -m tests.api.field_table`.

What the official client can send is in a schema, if only to be refused by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import anthropic.types.message_create_params
import openai.types.completion_create_params
from openai.types import chat, responses
from openai.types.embedding_create_params import EmbeddingCreateParams
from pydantic import BaseModel

from api.bodies.body import Body
from api.bodies.fields import Partly, WithoutEffect
from api.bodies.unsupported import EVERYWHERE, Unsupported
from api.dialects.anthropic.schema import MessagesRequest
from api.dialects.completions.schema import CompletionRequest
from api.dialects.embeddings.schema import EmbeddingRequest
from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.rerank.schema import RerankRequest
from api.dialects.responses.schema import CreateResponse
from api.dialects.spellings import MEANINGS, SERVERS
from api.dialects.tokenization import DetokenizeRequest, TokenizeRequest

PAGE = Path(__file__).parents[2] / "api" / "FIELDS.md"


@dataclass(frozen=True)
class Dialect:
    """One table: its heading, its schema, and the fields that the official client may send."""

    heading: str
    schema: type[Body]
    official: Sequence[str]

    @property
    def missing(self) -> list[str]:
        known = {field.alias or name for name, field in self.schema.model_fields.items()}
        known |= self.schema.unsupported.keys()
        return sorted(set(self.official) - known)


def _official(parameters: type[Any]) -> list[str]:
    return [*parameters.__annotations__, "stream"]


DIALECTS = (
    Dialect(
        "## OpenAI chat completions",
        ChatCompletionRequest,
        _official(chat.completion_create_params.CompletionCreateParamsBase),
    ),
    Dialect(
        "## OpenAI completions",
        CompletionRequest,
        _official(openai.types.completion_create_params.CompletionCreateParamsBase),
    ),
    Dialect(
        "## OpenAI responses",
        CreateResponse,
        _official(responses.response_create_params.ResponseCreateParamsBase),
    ),
    Dialect(
        "## Anthropic messages",
        MessagesRequest,
        _official(anthropic.types.message_create_params.MessageCreateParamsBase),
    ),
    Dialect("## OpenAI embeddings", EmbeddingRequest, list(EmbeddingCreateParams.__annotations__)),
    Dialect("## Rerank", RerankRequest, []),
    Dialect("## vLLM's tokenize", TokenizeRequest, []),
    Dialect("## vLLM's detokenize", DetokenizeRequest, []),
)


def table(dialect: Dialect) -> str:
    rows = [f"| `{row.path}` | {row.says} |" for row in fields(dialect.schema)]
    return "\n".join([dialect.heading, "| field | | |", "|---|---|---|", *rows])


@dataclass(frozen=True)
class Row:
    path: str
    says: str
    """Standing and remark, as two cells."""


def fields(schema: type[BaseModel], *, folded: bool = True) -> list[Row]:
    """All fields of `schema`. `folded`: what stands in several places is listed at the first, and the others
    refer to it."""
    return list(_rows(schema, "", {} if folded else None))


def _rows(schema: type[BaseModel], prefix: str, listed: dict[type[BaseModel], Row] | None) -> Iterator[Row]:
    """`listed`: where the models are listed that have been, and what is said of their field."""
    yield from (Row(prefix + name, says) for name, says in _refusals(schema))
    for name, field in schema.model_fields.items():
        row = Row(prefix + (field.alias or name), _standing(field.metadata))
        found = list(models_in(field.annotation, ""))
        if any(isinstance(mark, WithoutEffect) for mark in field.metadata):
            # An absent value has no members.
            found = []
        if not _refers(row, found, listed):
            yield row
        for model, suffix in found:
            # If there are several kinds, each by the type that selects it: `content[text]`.
            inside = suffix if len(found) == 1 else suffix.removesuffix("[]") + f"[{_tag(model)}]"
            place = f"{row.path}{inside}"
            if listed is not None and model in listed:
                yield Row(place, f"as `{listed[model].path}` |")
                continue
            if listed is not None:
                listed[model] = Row(place, row.says)
            yield from _rows(model, f"{place}.", listed)


def _refusals(schema: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the fields that the schema refuses, unless they ask for nothing."""
    assert issubclass(schema, Body)
    for name, field in schema.unsupported.items():
        if name not in schema.model_fields and field is not EVERYWHERE.get(name):
            yield name, _refusal(field)


def _refusal(field: Unsupported) -> str:
    said = " or ".join(json.dumps(value) for value in (field.also if field.only is None else field.only))
    return f"refused{said and f' unless {said}'} | {field.why}"


REFUSALS = "## What no API here has"


def refusals() -> str:
    rows = [f"| `{name}` | {_refusal(field)} |" for name, field in EVERYWHERE.items()]
    return "\n".join([REFUSALS, "| field | | |", "|---|---|---|", *rows])


def _refers(
    row: Row, found: list[tuple[type[BaseModel], str]], listed: dict[type[BaseModel], Row] | None
) -> bool:
    """Whether a reference says all of this field."""
    if listed is None or len(found) != 1 or found[0][1]:
        return False
    first = listed.get(found[0][0])
    return first is not None and first.says == row.says


def _standing(metadata: Sequence[Any]) -> str:
    for mark in metadata:
        match mark:
            case Partly(why=why):
                return f"supported in part | {why}"
            case WithoutEffect(why=why, named_unless=(*met,)):
                said = " or ".join(json.dumps(value) for value in met)
                return f"accepted without effect, named unless {said} | {why}"
            case WithoutEffect(why=why):
                return f"accepted without effect | {why}"
            case _:
                pass
    return "supported |"


def models_in(annotation: Any, suffix: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Return the models of a field's value, and how the path to each is written."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, suffix
    for argument in get_args(annotation):
        yield from models_in(argument, suffix + ("[]" if _is_list(annotation) else ""))


def _tag(model: type[BaseModel]) -> str:
    """Return the type that selects the model, or the model's name where it stands for many types."""
    types = get_args(model.model_fields["type"].annotation)
    return types[0] if types and isinstance(types[0], str) else model.__name__


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is list


SPELLINGS = "## Every server's names"


def spellings() -> str:
    """The table of `api/dialects/spellings.py`. A field of all servers says so in one word."""
    rows = []
    for meaning in MEANINGS:
        title = meaning.title
        for spelling in meaning.spellings:
            whose = "all" if spelling.servers == SERVERS else ", ".join(spelling.servers)
            rows.append(f"| {title} | `{spelling.path}` | {whose} |")
            title = ""
    return "\n".join([SPELLINGS, "| what is asked for | field | whose |", "|---|---|---|", *rows])


def rewrite(text: str) -> str:
    """Return `text` with every table as the schemas have it now."""
    text = replace_table(text, SPELLINGS + "\n", spellings())
    text = replace_table(text, REFUSALS + "\n", refusals())
    for dialect in DIALECTS:
        text = replace_table(text, dialect.heading + "\n", table(dialect))
    return text


def replace_table(text: str, start: str, table: str) -> str:
    """Return `text` with `table` in place of the lines from `start` to the next blank line."""
    before, found, rest = text.partition(start)
    assert found, f"the page has no {start!r}"
    _, blank, after = rest.partition("\n\n")
    return before + table + (blank or "\n") + after


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text()))
    sys.exit(0)
