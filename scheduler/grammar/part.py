"""Parts of an answer's grammar for llguidance, each checked by itself so that an error names its field.

In an invalid JSON schema the place of the error is looked for, to name it in the client's message.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, assert_never

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from scheduler.errors import InvalidRequest
from scheduler.grammar.vocabulary import quoted
from scheduler.grammar.white_space import json_options, white_space_fault
from scheduler.shared.messages import MAX_GRAMMAR_BYTES
from scheduler.structure import JsonText, OneOf, Pattern, Rules, Structure

_LONGEST_COMPLAINT = 400
_ASCII = "dws"
"""Classes of digits, letters and white space are ASCII, as in JSON schema and in vLLM."""


class Parts:
    """Checks the parts of one model's grammars."""

    def __init__(self, verdict: Callable[[str], str | None]) -> None:
        self.verdict = verdict
        """Returns the error of a grammar, or None if it has none. It is `Verdicts.of` or `Verdicts.known`."""

    def complaint(self, part: dict[str, Any]) -> str | None:
        """Return the error of one part, or None."""
        return self.verdict(json.dumps({"grammars": [part]}, ensure_ascii=False))

    def checked(self, structure: Structure) -> dict[str, Any]:
        """Return the part for a requested structure. Raise InvalidRequest with its place."""
        match structure:
            case JsonText():
                return self._json(structure)
            case Pattern(regex=regex, place=place):
                part = {"lark_grammar": f"start: /{regex_to_lark(regex, _ASCII)}/\n"}
            case OneOf(texts=texts, place=place):
                part = {"lark_grammar": "start: " + " | ".join(map(quoted, texts)) + "\n"}
            case Rules(text=text, place=place):
                part = {"lark_grammar": _lark(text, place)}
            case _:
                assert_never(structure)
        _check_size(part, place)
        if (complaint := self.complaint(part)) is not None:
            raise _invalid((), place, complaint)
        return part

    def _json(self, asked: JsonText) -> dict[str, Any]:
        schema = {} if asked.schema is True else asked.schema
        if not isinstance(schema, dict):
            raise _invalid((), asked.place, "the JSON schema must be an object")
        white = asked.white_space
        if white is not None and (fault := white_space_fault(white, self.complaint)) is not None:
            raise _invalid((), white.place, fault)
        options = json_options(schema, white)
        part = {"json_schema": {**schema, "x-guidance": options}}
        _check_size(part, asked.place)
        if (complaint := self.complaint(part)) is not None:
            path, why = schema_fault(
                schema,
                complaint,
                lambda inner: self.complaint({"json_schema": {**inner, "x-guidance": options}}),
            )
            raise _invalid(path, asked.place, why)
        return part


def _check_size(part: dict[str, Any], place: str) -> None:
    if len(json.dumps(part, ensure_ascii=False).encode()) > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"{place}: it is larger than {MAX_GRAMMAR_BYTES} bytes", param=place)


def _lark(text: str, place: str) -> str:
    try:
        return str(any_to_lark(text))
    except Exception as error:  # The GBNF parser raises various exceptions.
        raise _invalid((), place, short_complaint(str(error)) or "it cannot be parsed") from error


def _invalid(path: Sequence[str], place: str, why: str) -> InvalidRequest:
    exact = ".".join([place, *path])
    return InvalidRequest(f"{exact}: {why}", param=exact)


def short_complaint(complaint: str | None) -> str | None:
    """Return the error in one line, without the library's source excerpt."""
    if complaint is None:
        return None
    complaint = re.sub(r"\n\s*\d+ \|.*", "", complaint, flags=re.DOTALL)
    return re.sub(r"\s+", " ", complaint).strip()[:_LONGEST_COMPLAINT]


_NAMED = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_LISTED = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_DEFINITIONS = ("$defs", "definitions")
LOCATED_BYTES = 32 << 10
"""A larger schema is reported as a whole: the search would take seconds."""
SEARCH_SECONDS = 0.5
"""Bound on the search, which compiles each part; after it the place found so far is reported."""


def schema_fault(
    schema: dict[str, Any],
    complaint: str,
    complaint_of: Callable[[Any], str | None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[str, ...], str]:
    """Return the path to the error, and its message. `complaint` is the library's error of the whole schema;
    `complaint_of` gives the error of a part."""
    if len(json.dumps(schema)) > LOCATED_BYTES:
        return (), complaint
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        return tuple(str(step) for step in error.absolute_path), str(error.message)
    except Exception:  # A `$schema` or `$ref` that does not resolve: `complaint` covers it.
        return (), complaint
    until = clock() + SEARCH_SECONDS
    return _deepest(schema, complaint, complaint_of, lambda: clock() < until), complaint


def _deepest(
    root: dict[str, Any],
    complaint: str,
    complaint_of: Callable[[Any], str | None],
    has_time: Callable[[], bool],
) -> tuple[str, ...]:
    """Return the path of the innermost part that has the same error when it is compiled alone, with the
    root's definitions."""
    path: tuple[str, ...] = ()
    schema = root
    definitions = {name: root[name] for name in _DEFINITIONS if name in root}
    found = True
    while found:
        found = False
        for step, part in _parts(schema):
            if not has_time():
                return path
            if complaint_of({**definitions, **part}) == complaint:
                path, schema, found = (*path, *step), part, True
                break
    return path


def _parts(schema: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield path and content of the direct subschemas, definitions first: the fault is in a bad definition,
    not in a reference to it."""
    for keyword in _NAMED:
        inside = schema.get(keyword)
        if isinstance(inside, dict):
            yield from (((keyword, name), part) for name, part in inside.items() if isinstance(part, dict))
    for keyword in _LISTED:
        inside = schema.get(keyword)
        if isinstance(inside, list):
            yield from (((keyword, str(i)), part) for i, part in enumerate(inside) if isinstance(part, dict))
    for keyword in _SINGLE:
        if isinstance(inside := schema.get(keyword), dict):
            yield (keyword,), inside
