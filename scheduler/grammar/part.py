"""Parts of an answer's grammar for llguidance, each checked by itself so that an error names its field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from scheduler.errors import InvalidRequest
from scheduler.grammar.caches import content_key
from scheduler.grammar.plain_schema import plain_schema
from scheduler.grammar.schema_forms import Inexpressible, Path, schema_error
from scheduler.grammar.unheld import fault, held_part, pointers
from scheduler.grammar.vocabulary import quoted
from scheduler.grammar.white_space import json_options
from scheduler.shared.messages import MAX_GRAMMAR_BYTES
from scheduler.structure import JsonText, OneOf, Pattern, Rules, Structure

_LONGEST_COMPLAINT = 400
_ASCII = "dws"
"""Classes of digits, letters and white space are ASCII, as in JSON schema and in vLLM."""


class Parts:
    """Checks the parts of one model's grammars."""

    def __init__(self, complaint: Callable[[str], str | None]) -> None:
        """`complaint` returns the error of a grammar, or None if it has none."""
        self.unheld: tuple[str, ...] = ()
        """What schemas that are not exact lose, by their fields and JSON pointers, as `field#/pointer`."""
        self._complaint = complaint
        self._known: dict[bytes, str | None] = {}

    def verdict(self, grammar: str) -> str | None:
        """Return the error of a grammar, or None. A search for a place asks for the same one many times."""
        key = content_key(grammar)
        if key not in self._known:
            self._known[key] = self._complaint(grammar)
        return self._known[key]

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
        schema, place = {} if asked.schema is True else asked.schema, asked.place
        if not isinstance(schema, dict):
            raise _invalid((), place, "the JSON schema must be an object")
        try:
            plain = plain_schema(schema)
            if (held := plain.exact() if asked.exact else plain.schema) is False:
                raise Inexpressible((), "no value fits it")
        except Inexpressible as error:
            raise _invalid(error.path, place, error.why) from None
        options = json_options(held)
        part = {"json_schema": {**held, "x-guidance": options}}
        _check_size(part, place)
        complaint = self.complaint(part)
        removed: list[Path] = []
        if complaint is not None:
            loose, removed = (None, []) if asked.exact else self.loosened(held, options)
            if loose is None:
                path, why = schema_error(held) or (
                    fault(held, complaint, self._complaint_under(options)),
                    complaint,
                )
                raise _invalid(path, place, why)
            part = loose
        if not asked.exact:
            named = pointers(schema, (*plain.lost, *removed))
            self.unheld += tuple(f"{place}#{pointer}" for pointer in named)
        return part

    def loosened(
        self, schema: dict[str, Any], options: dict[str, Any]
    ) -> tuple[dict[str, Any] | None, list[Path]]:
        """Return the part of `schema` without the keywords that cannot be held, or None, and their paths."""
        left, removed = held_part(schema, self._complaint_under(options))
        return None if left is None else {"json_schema": {**left, "x-guidance": options}}, removed

    def _complaint_under(self, options: dict[str, Any]) -> Callable[[Any], str | None]:
        return lambda inner: self.complaint({"json_schema": {**inner, "x-guidance": options}})


def _check_size(part: dict[str, Any], place: str) -> None:
    if len(json.dumps(part, ensure_ascii=False).encode()) > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"{place}: it is larger than {MAX_GRAMMAR_BYTES} bytes", param=place)


def _lark(text: str, place: str) -> str:
    try:
        return str(any_to_lark(text))
    except RecursionError:
        raise
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
