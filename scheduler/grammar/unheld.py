"""The keywords of a schema that the grammar library refuses.

One of them is the fault of a schema that must be kept to the letter. Without them all, the library holds the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any
from urllib.parse import quote

from scheduler.grammar.plain_schema import DEFINITIONS, HELD_FORMATS, Schema, parts, subschemas, target
from scheduler.grammar.schema_forms import Path, schema_error

MOST_NAMED = 16
MORE = "..."
"""Stands for further keywords."""
_FORMATS = frozenset(
    (
        "idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer",
        "relative-json-pointer", "regex",
    )
)  # fmt: skip
"""Values of `format` that JSON schema has, and the library does not. Others are annotations."""
_WIDENED = {
    "oneOf": "oneOf constraints are not supported",
    "minProperties": "min/maxProperties only supported",
    "maxProperties": "min/maxProperties only supported",
}
"""Keywords that a schema may have many of, and the library's errors of them."""
_LOOSENED = frozenset(("pattern", "format", "multipleOf", "patternProperties", "minimum", "maximum"))
"""Keywords that are left out before any other."""
_UNSATISFIABLE = "nsatisfiable"
"""Part of the library's error for a schema that no value fits."""

Complaint = Callable[[Schema], str | None]
"""The library's error of a schema."""


def fault(schema: Schema, complaint: str, complaint_of: Complaint) -> Path:
    """Return the path to the keyword that `complaint`, the error of the whole schema, is about, or to the
    innermost part that has it."""
    return _Search(schema, complaint_of).place(complaint)


def held_part(schema: Schema, complaint_of: Complaint) -> tuple[Schema | None, list[Path]]:
    """Return `schema` without the keywords that cannot be held, and their paths. The former is None if it is
    no schema, or if nothing fits it."""
    search = _Search(deepcopy(schema), complaint_of)
    removed: list[Path] = []
    while (complaint := complaint_of(search.schema)) is not None:
        if _UNSATISFIABLE in complaint or schema_error(search.schema):
            return None, removed
        found = [*search.widened(complaint)] or [*search.without(complaint)]
        if not found:
            return None, removed
        removed += found
    return search.schema, removed


def pointers(asked: Schema, lost: Iterable[Path]) -> tuple[str, ...]:
    """Return JSON pointers into `asked`, in order, at most MOST_NAMED and MORE: to `lost`, which are paths in
    its plain form, and to what the plain form takes for an annotation."""
    formats = (
        (*path, "format") for path, one in subschemas(asked) if one.get("format") in _FORMATS - HELD_FORMATS
    )
    found = sorted({_pointer(asked, path) for path in (*lost, *formats)})
    return tuple(found) if len(found) <= MOST_NAMED else (*found[:MOST_NAMED], MORE)


class _Search:
    """Changes `schema`. Each part is compiled; the limits of the process bound that (`trial.py`)."""

    def __init__(self, schema: Schema, complaint_of: Complaint) -> None:
        self.schema = schema
        self._complaint_of = complaint_of

    def place(self, complaint: str) -> Path:
        """Return the path to the keyword, or to the part, that has this complaint when it is compiled alone,
        with the root's definitions."""
        path: Path = ()
        part, found = self.schema, True
        while found:
            found = False
            for step, inner in parts(part):
                if isinstance(inner, dict) and self._alone(inner) == complaint:
                    path, part, found = (*path, *step), inner, True
                    break
        keywords = sorted(part.keys() - {*DEFINITIONS}, key=lambda name: (name not in _LOOSENED, name))
        for keyword in keywords:
            if self._alone({name: one for name, one in part.items() if name != keyword}) != complaint:
                return (*path, keyword)
        return path

    def widened(self, complaint: str) -> Iterator[Path]:
        """Write what this complaint is about as something wider, everywhere, innermost first."""
        keywords = [keyword for keyword, error in _WIDENED.items() if error in complaint]
        for path, part in reversed([*subschemas(self.schema)]) if keywords else ():
            for keyword in keywords:
                if keyword in part and _WIDENED[keyword] in (self._alone(part) or ""):
                    value = part.pop(keyword)
                    if keyword == "oneOf":
                        part["allOf"] = [*part.get("allOf", ()), {"anyOf": value}]
                    yield (*path, keyword)

    def without(self, complaint: str) -> Iterator[Path]:
        """Remove the keyword that this complaint is about."""
        path = self.place(complaint)
        part = _at(self.schema, path[:-1])
        if path and isinstance(part, dict) and path[-1] in part:
            del part[path[-1]]
            yield path

    def _alone(self, part: Schema) -> str | None:
        definitions = {name: self.schema[name] for name in DEFINITIONS if name in self.schema}
        return self._complaint_of({**definitions, **part})


def _at(schema: Any, path: Path) -> Any:
    for step in path:
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


def _pointer(asked: Schema, path: Path) -> str:
    """Return the pointer to a keyword at `path`. Where the plain form has what the client's has not, it is at
    the last place that both have."""
    *steps, keyword = (step.replace("~", "~0").replace("/", "~1") for step in path)
    while not isinstance(target(asked, f"#/{quote('/'.join(steps))}"), dict):
        steps.pop()
    return "/".join(("", *steps, keyword))
