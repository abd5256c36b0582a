"""The keywords of a schema that the grammar library refuses.

One of them is the fault of a schema that must be kept to the letter. Without them all, the library holds the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from urllib.parse import quote

from scheduler.answer.schema_check import target
from scheduler.grammar.plain_schema import DEFINITIONS, HELD_FORMATS, Schema, parts, subschemas
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
_LOOSENED = frozenset(
    (
        "oneOf", "minProperties", "maxProperties", "pattern", "format", "multipleOf", "patternProperties",
        "minimum", "maximum",
    )
)  # fmt: skip
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
        is_none = _UNSATISFIABLE in complaint or schema_error(search.schema)
        if is_none or not (found := [*search.without(complaint)]):
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
        left = dict(part)
        for keyword in sorted(part.keys() - {*DEFINITIONS}, key=lambda name: (name not in _LOOSENED, name)):
            del left[keyword]
            if self._alone(left) != complaint:
                return (*path, keyword)
        return path

    def without(self, complaint: str) -> Iterator[Path]:
        """Remove the keyword that this complaint is about, wherever a part has the same one: in definitions
        first, and innermost first. Exclusive alternatives become others."""
        keyword = ("", *self.place(complaint))[-1]
        inner = reversed([*subschemas(self.schema)])
        for path, part in sorted(inner, key=lambda one: not set(DEFINITIONS).intersection(one[0][:1])):
            if keyword in part and self._alone(part) == complaint:
                value = part.pop(keyword)
                if keyword == "oneOf":
                    part["allOf"] = [*part.get("allOf", ()), {"anyOf": value}]
                yield (*path, keyword)

    def _alone(self, part: Schema) -> str | None:
        definitions = {name: self.schema[name] for name in DEFINITIONS if name in self.schema}
        return self._complaint_of({**definitions, **part})


def _pointer(asked: Schema, path: Path) -> str:
    """Return the pointer to a keyword at `path`. Where the plain form has what the client's has not, it is at
    the last place that both have."""
    *steps, keyword = (step.replace("~", "~0").replace("/", "~1") for step in path)
    while not isinstance(target(asked, f"#/{quote('/'.join(steps))}"), dict):
        steps.pop()
    return "/".join(("", *steps, keyword))
