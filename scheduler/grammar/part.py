"""Parts of an answer's grammar for llguidance, each checked by itself so that an error names its field.

In an invalid JSON schema the place of the error is looked for, to name it in the client's message.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, assert_never

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from scheduler.errors import InvalidRequest
from scheduler.grammar.plain_schema import parts, plain_schema
from scheduler.grammar.unheld import unheld, without_counts
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
        self.unheld: tuple[str, ...] = ()
        """What schemas that are not exact lose, by their fields and JSON pointers, as `field#/pointer`."""
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
        _check_size({"json_schema": schema}, asked.place)
        white = asked.white_space
        if white is not None and (fault := white_space_fault(white, self.complaint)) is not None:
            raise _invalid((), white.place, fault)
        plain = plain_schema(schema)
        if plain is False:
            raise _invalid((), asked.place, "no value fits it")
        options = json_options(plain, white)
        part = {"json_schema": {**plain, "x-guidance": options}}
        _check_size(part, asked.place)
        complaint = self.complaint(part)
        if not asked.exact:
            removed = list[tuple[str, ...]]()
            loose = part if complaint is None else self.loosened(plain, options, removed=removed)
            if loose is not None:
                complaint_of = None if complaint is None else self._complaint_under(options)
                self._name_unheld(asked, loose["json_schema"], removed, complaint_of)
                return loose
        if complaint is None:
            return part
        path, why = schema_fault(plain, complaint, self._complaint_under(options))
        raise _invalid(path, asked.place, why)

    def loosened(
        self,
        schema: dict[str, Any],
        options: dict[str, Any],
        clock: Callable[[], float] = time.monotonic,
        removed: list[tuple[str, ...]] | None = None,
    ) -> dict[str, Any] | None:
        """Return the part of `schema` without the keywords that cannot be held; None if it is no schema, if
        nothing fits it, or if the search for them takes too long. The paths of these keywords are added to
        `removed`."""
        options = {**options, "lenient": True}
        complaint_of = self._complaint_under(options)
        until = clock() + SEARCH_SECONDS
        left: dict[str, Any] | None = without_counts(schema, removed)
        while left is not None and (complaint := complaint_of(left)) is not None:
            if _UNSATISFIABLE in complaint or clock() > until or not _is_schema(left):
                return None
            path = _deepest(left, complaint, complaint_of, lambda: clock() < until)
            keyword = _fault(left, path, complaint, complaint_of)
            left = None if keyword is None else _without(left, path, keyword)
            if removed is not None and keyword is not None:
                removed.append((*path, keyword))
        return None if left is None else {"json_schema": {**left, "x-guidance": options}}

    def _name_unheld(
        self,
        asked: JsonText,
        held: dict[str, Any],
        removed: Sequence[tuple[str, ...]],
        complaint_of: Callable[[Any], str | None] | None,
    ) -> None:
        until = time.monotonic() + SEARCH_SECONDS
        held = {keyword: value for keyword, value in held.items() if keyword != "x-guidance"}
        schema = asked.schema if isinstance(asked.schema, dict) else {}
        pointers = unheld(schema, held, removed, complaint_of, lambda: time.monotonic() < until)
        self.unheld += tuple(f"{asked.place}#{pointer}" for pointer in pointers)

    def _complaint_under(self, options: dict[str, Any]) -> Callable[[Any], str | None]:
        return lambda inner: self.complaint({"json_schema": {**inner, "x-guidance": options}})


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


_UNSATISFIABLE = "nsatisfiable"
"""Part of the library's error for a schema that no value fits."""
_DEFINITIONS = ("$defs", "definitions")
_LOOSENED = frozenset(("pattern", "format", "multipleOf", "patternProperties", "minimum", "maximum"))
"""Keywords that are left out before any other."""
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
        for step, part in parts(schema):
            if not has_time():
                return path
            if complaint_of({**definitions, **part}) == complaint:
                path, schema, found = (*path, *step), part, True
                break
    return path


def _is_schema(schema: dict[str, Any]) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except Exception:  # Or it has a reference that does not resolve.
        return False
    return True


def _fault(
    root: dict[str, Any], path: tuple[str, ...], complaint: str, complaint_of: Callable[[Any], str | None]
) -> str | None:
    """Return the keyword at `path` that the complaint is about, or None if it is not one."""
    definitions = {name: root[name] for name in _DEFINITIONS if name in root}
    part = _at(root, path)
    for keyword in sorted(part.keys() - definitions.keys(), key=lambda name: (name not in _LOOSENED, name)):
        rest = {name: value for name, value in part.items() if name != keyword}
        if complaint_of({**definitions, **rest}) != complaint:
            return keyword
    return None


def _without(root: dict[str, Any], path: tuple[str, ...], keyword: str) -> dict[str, Any]:
    root = deepcopy(root)
    del _at(root, path)[keyword]
    return root


def _at(root: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    part: Any = root
    for step in path:
        part = part[int(step)] if isinstance(part, list) else part[step]
    found: dict[str, Any] = part
    return found
