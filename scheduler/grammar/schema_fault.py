"""Locate the error in an invalid JSON schema, for the client's error message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

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
    """Return the path of the innermost part with the same error by itself (with the root's definitions)."""
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
    """Return the direct subschemas, definitions first: a reference to a bad one is not the fault."""
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
