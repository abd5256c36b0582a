"""What a schema asks that its grammar does not hold, where the client did not ask for `strict`.

Each keyword is named by a JSON pointer into the client's own schema: what was left out because the library
refuses it, and what the library reads past when it is lenient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

from scheduler.grammar.plain_schema import HELD_FORMATS, subschemas

MOST_NAMED = 16
MORE = "..."
"""Stands for further keywords."""
_UNKNOWN = frozenset(
    (
        "$dynamicRef", "$recursiveRef", "uniqueItems", "not", "if", "contains", "propertyNames",
        "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties",
        # The third draft's.
        "extends", "disallow", "divisibleBy",
    )
)  # fmt: skip
"""Keywords that constrain a value, and that the library does not have. `then`, `else`, `minContains` and
`maxContains` say nothing without their own."""
_FORMATS = frozenset(
    (
        "idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer",
        "relative-json-pointer", "regex",
    )
)  # fmt: skip
"""Values of `format` that JSON schema has, and the library does not. Others are annotations."""
_ONE_OF, _COUNTS = "oneOf", ("minProperties", "maxProperties")
_NOT_ONE_OF, _NOT_COUNTED = "oneOf constraints are not supported", "min/maxProperties only supported"
"""In the library's errors: what it does without when it is lenient."""

Path = tuple[str, ...]


def unheld(
    asked: dict[str, Any],
    held: dict[str, Any],
    removed: Iterable[Path],
    complaint_of: Callable[[Any], str | None] | None,
    has_time: Callable[[], bool],
) -> tuple[str, ...]:
    """Return JSON pointers into `asked`, in order, at most MOST_NAMED and MORE. `held`: its plain form
    without the keywords at `removed`, which the library takes when it is lenient. `complaint_of`: the error
    of a schema when it is not; None if `held` has none. Where there is no time left, what the library might
    have passed over counts as unheld."""
    paths = [*removed]
    paths += (
        (*path, "format") for path, one in subschemas(asked) if one.get("format") in _FORMATS - HELD_FORMATS
    )
    paths += ((*path, keyword) for path, one in subschemas(held) for keyword in one if keyword in _UNKNOWN)
    if complaint_of is not None:
        paths += _coarsened(deepcopy(held), complaint_of, has_time)
    found = sorted({_pointer(asked, path) for path in paths})
    return tuple(found) if len(found) <= MOST_NAMED else (*found[:MOST_NAMED], MORE)


def without_counts(schema: dict[str, Any], removed: list[Path] | None) -> dict[str, Any]:
    """Return `schema` without bounds on the number of properties where one may be absent, and add their paths
    to `removed`: the library counts undeclared properties only."""
    schema = deepcopy(schema)
    for path, one in subschemas(schema):
        counts = [keyword for keyword in _COUNTS if keyword in one]
        declared, required = one.get("properties"), one.get("required")
        if isinstance(declared, dict) and not declared.keys() <= set(map(str, required or ())):
            for keyword in counts:
                del one[keyword]
                if removed is not None:
                    removed.append((*path, keyword))
    return schema


def _coarsened(
    bare: dict[str, Any], complaint_of: Callable[[Any], str | None], has_time: Callable[[], bool]
) -> list[Path]:
    """Return what of `bare`, which is changed, the library holds as something wider, innermost first."""
    every = list(subschemas(bare))
    for _, one in every:
        for keyword in _UNKNOWN & one.keys():
            del one[keyword]
    definitions = {name: bare[name] for name in ("$defs", "definitions") if name in bare}
    found: list[Path] = []
    for path, one in reversed(every):
        counts = [keyword for keyword in _COUNTS if keyword in one]
        if _ONE_OF not in one and not counts:
            continue
        complaint = complaint_of({**definitions, **one}) if has_time() else _NOT_ONE_OF + _NOT_COUNTED
        if counts and _NOT_COUNTED in (complaint or ""):
            found += ((*path, keyword) for keyword in counts)
            for keyword in counts:
                del one[keyword]
            complaint = complaint_of({**definitions, **one}) if has_time() else _NOT_ONE_OF
        if _ONE_OF in one and _NOT_ONE_OF in (complaint or ""):
            found.append((*path, _ONE_OF))
            one["allOf"] = [*one.get("allOf", ()), {"anyOf": one.pop(_ONE_OF)}]
    return found


def _pointer(asked: dict[str, Any], path: Sequence[str]) -> str:
    """Return the pointer to a keyword at `path`. Where the plain form has what the client's has not, it is at
    the last place that both have."""
    steps = list[str]()
    part: Any = asked
    for step in path[:-1]:
        inner: Any = None
        if isinstance(part, list):
            inner = part[int(step)] if step.isdecimal() and int(step) < len(part) else None
        elif isinstance(part, dict):
            inner = part.get(step)
        if inner is None:
            break
        steps.append(step)
        part = inner
    if isinstance(part, list):
        del steps[-1]
    steps.append(path[-1])
    return "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
