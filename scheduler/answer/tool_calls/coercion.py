"""A tool call's arguments, made to fit the tool's JSON schema where only one reading is possible.

Models write "3" where the schema says integer, or a JSON text where it says object. What fits is left as
it is, and so is what has no or more than one reading: the client checks its own tools' arguments and
tells the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from referencing import Registry

Schema = Mapping[str, Any]

# A client's `pattern` could take exponential time on a model's text, and decides nothing here.
_Validator = extend(Draft202012Validator, {"pattern": None, "patternProperties": None})
_NO_NETWORK: Registry[Any] = Registry()
"""The package's own registry would fetch a remote `$ref`."""

_INTEGER = re.compile(r"-?\d{1,4000}")
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = ("null", "None")
_DEEPEST = 32


def fits(value: Any, schema: Schema) -> bool:
    """Whether `value` is valid. A schema that is none accepts everything."""
    try:
        return bool(_Validator(dict(schema), registry=_NO_NETWORK).is_valid(value))
    except Exception:  # The schema is the client's: a bad reference, no type, a recursion without end.
        return True


def coerce(value: Any, schema: Schema) -> Any:
    """`value`, or its one reading that is valid."""
    if fits(value, schema):
        return value
    return _Coercion(schema).fit(value, schema, _DEEPEST)


class _Coercion:
    def __init__(self, root: Schema) -> None:
        self._root = root

    def fit(self, value: Any, schema: Any, depth: int) -> Any:
        schema = self._resolve(schema)
        if schema is None or depth == 0:
            return value
        branches = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(branches, list):
            return self._fit_one_of(value, branches, depth)
        types = _types(schema)
        if types and not _is_of(value, types):
            readings = [reading for kind in types for reading in _readings(value, kind)]
            if len(readings) != 1:
                return value
            value = readings[0]
        return self._fit_inside(value, schema, depth)

    def _fit_one_of(self, value: Any, branches: list[Any], depth: int) -> Any:
        candidates = []
        for branch in branches:
            fitted = self.fit(value, branch, depth - 1)
            resolved = self._resolve(branch)
            if resolved is not None and fits(fitted, {**self._definitions(), **resolved}):
                candidates.append(fitted)
        distinct = {json.dumps(candidate, sort_keys=True) for candidate in candidates}
        return candidates[0] if len(distinct) == 1 else value

    def _fit_inside(self, value: Any, schema: Schema, depth: int) -> Any:
        properties, items = schema.get("properties"), schema.get("items")
        if isinstance(value, dict) and isinstance(properties, dict):
            return {
                name: self.fit(item, properties[name], depth - 1) if name in properties else item
                for name, item in value.items()
            }
        if isinstance(value, list) and isinstance(items, dict):
            return [self.fit(item, items, depth - 1) for item in value]
        return value

    def _resolve(self, schema: Any) -> Schema | None:
        """The schema itself, or what its local `$ref` names."""
        for _ in range(8):
            if not isinstance(schema, Mapping):
                return None
            reference = schema.get("$ref")
            if reference is None:
                return schema
            if not isinstance(reference, str) or not reference.startswith("#"):
                return None
            schema = self._at(reference)
        return None

    def _at(self, pointer: str) -> Any:
        place: Any = self._root
        for part in pointer.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            place = place.get(name) if isinstance(place, Mapping) else None
        return place

    def _definitions(self) -> dict[str, Any]:
        return {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}


def property_schema(schema: Schema, name: str) -> Schema:
    """What `schema` says of one argument, with the definitions that it may refer to; {} if nothing."""
    properties = schema.get("properties")
    inner = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(inner, Mapping):
        return {}
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {**definitions, **inner}


def _types(schema: Schema) -> tuple[str, ...]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return (kinds,)
    return tuple(kind for kind in kinds if isinstance(kind, str)) if isinstance(kinds, list) else ()


def _is_of(value: Any, types: tuple[str, ...]) -> bool:
    return any(fits(value, {"type": kind}) for kind in types)


def _readings(value: Any, kind: str) -> Iterator[Any]:
    """`value` as a `kind`: at most one."""
    if kind == "string":
        if value is not None and not isinstance(value, str):
            yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, str):
        yield from _read(value.strip(), kind)


def _read(text: str, kind: str) -> Iterator[Any]:
    if kind == "integer" and _INTEGER.fullmatch(text):
        yield int(text)
    elif kind == "boolean" and text in _WORDS:
        yield _WORDS[text]
    elif kind == "null" and text in _NULLS:
        yield None
    elif kind in ("number", "object", "array"):
        try:
            read = json.loads(text, parse_constant=lambda name: name)
        except (ValueError, RecursionError):
            return
        if _is_of(read, (kind,)):
            yield read
