"""The tables of `api/FIELDS.md`, of fields that differ: `python -m tests.api.field_table` writes them.

What the official client can send is in a schema, if only to be refused by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import anthropic.types.message_create_params
import openai.types.completion_create_params
from openai.types import chat, responses
from openai.types.decision_create_params import DecisionCreateParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from pydantic import BaseModel

from api.bodies.body import Body
from api.bodies.fields import Partly, WithoutEffect
from api.bodies.unsupported import EVERYWHERE, Unsupported
from api.dialects.anthropic.schema import MessagesRequest
from api.dialects.completions.schema import CompletionRequest
from api.dialects.decisions.schema import DecisionRequest, SystemOneRequest
from api.dialects.embeddings import EmbeddingRequest
from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.responses.schema import CreateResponse
from api.dialects.scores.schema import RerankRequest
from api.dialects.spellings import MEANINGS
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
    Dialect("## Decisions", DecisionRequest, list(DecisionCreateParams.__annotations__)),
    Dialect("## System One", SystemOneRequest, []),
    Dialect("## vLLM's tokenize", TokenizeRequest, []),
    Dialect("## vLLM's detokenize", DetokenizeRequest, []),
)


def tables() -> dict[str, str]:
    """Return the table of each heading. What an earlier one has is not said again."""
    found: dict[str, str] = {}
    listed: set[tuple[str, str]] = set()
    for dialect in DIALECTS:
        rows = [row for row in differing(dialect.schema) if row not in listed]
        listed.update(rows)
        found[dialect.heading] = _table(dialect.heading, rows)
    return found


def _table(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return a row for all fields of one standing."""
    paths: dict[str, dict[str, None]] = {}
    for path, standing in rows:
        paths.setdefault(standing, {})[f"`{path}`"] = None
    lines = [f"| {', '.join(same)} | {standing} |" for standing, same in paths.items()]
    return "\n".join([heading, "| field | | |", "|---|---|---|", *lines])


def differing(schema: type[Body]) -> list[tuple[str, str]]:
    """Return path and standing of each field that is not supported as the API has it: in the first place in
    which it stands."""
    found: list[tuple[str, str]] = []
    seen: set[type[BaseModel]] = set()

    def visit(model: type[BaseModel], prefix: str) -> None:
        seen.add(model)
        found.extend((prefix + name, refused) for name, refused in _refusals(model))
        for name, field in model.model_fields.items():
            path, standing = prefix + (field.alias or name), _standing(field.metadata)
            # Members without effect are many, and say so in the answer's header.
            if standing and not (prefix and any(isinstance(mark, WithoutEffect) for mark in field.metadata)):
                found.append((path, standing))
            if not any(isinstance(mark, WithoutEffect) for mark in field.metadata):
                # An absent value has no members.
                for inner, suffix in models_in(field.annotation, ""):
                    if inner not in seen:
                        visit(inner, f"{path}{suffix}.")

    visit(schema, "")
    return found


def _refusals(schema: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the fields that the schema refuses, unless they ask for nothing."""
    assert issubclass(schema, Body)
    for name, field in schema.unsupported.items():
        if name not in schema.model_fields and field is not EVERYWHERE.get(name):
            yield name, _refusal(field)


def _refusal(field: Unsupported) -> str:
    said = " or ".join(map(json.dumps, field.also if field.only is None else field.only))
    return f"refused{said and f' unless {said}'} | {field.why}"


REFUSALS = "## What no API here has"


def _standing(metadata: Sequence[Any]) -> str:
    for mark in metadata:
        match mark:
            case Partly(why=why):
                return f"supported in part | {why}"
            case WithoutEffect(why=why, named_unless=met):
                unless = " or ".join(map(json.dumps, met or ()))
                named = "" if met is None else f", named{unless and f' unless {unless}'}"
                return f"accepted without effect{named} | {why}"
            case _:
                pass
    return ""


def models_in(annotation: Any, suffix: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Return the models of a field's value, and how the path to each is written."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, suffix
    for argument in get_args(annotation):
        yield from models_in(argument, suffix + ("[]" if get_origin(annotation) is list else ""))


SPELLINGS = "## Several names"


def spellings() -> str:
    """The table of `api/dialects/spellings.py`."""
    rows = [
        f"| {meaning.title} | {', '.join(f'`{path}`' for path in meaning.spellings)} |"
        for meaning in MEANINGS
    ]
    return "\n".join([SPELLINGS, "| what is asked for | fields |", "|---|---|", *rows])


def rewrite(text: str) -> str:
    """Return `text` with every table as the schemas have it now."""
    text = replace_table(text, SPELLINGS + "\n", spellings())
    refused = [(name, _refusal(field)) for name, field in EVERYWHERE.items()]
    text = replace_table(text, REFUSALS + "\n", _table(REFUSALS, refused))
    for heading, table in tables().items():
        text = replace_table(text, heading + "\n", table)
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
