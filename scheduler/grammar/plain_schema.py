"""A client's JSON schema in the keywords that the grammar library has, allowing the same values.

Generators (zod, pydantic, TypeBox, OpenAPI) write keywords that say nothing, as `uniqueItems: false`, which
the library does not know. A keyword that no grammar holds is left out and named: it is a fault of a schema
that must be kept to the letter.

Bounds that no answer reaches are left out; bounds that the library cannot count up to are the largest that
it can, so that every value that it writes fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

from scheduler.answer.schema_check import listed, target
from scheduler.grammar.schema_forms import Inexpressible, Path, malformed

DEFINITIONS = ("$defs", "definitions")
NAMED = (*DEFINITIONS, "properties", "patternProperties")
"""Keywords whose members are schemas."""
LISTED = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
SINGLE = ("items", "additionalItems", "additionalProperties")
HELD_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Values of `format` that the library holds. Any other is an annotation, as JSON schema has it."""
_UNHELD = frozenset(
    (
    "$dynamicRef", "$recursiveRef", "uniqueItems", "not", "if", "contains", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties",
    # The third draft's.
    "extends", "disallow", "divisibleBy",
    )
)  # fmt: skip
"""Keywords that constrain a value, and that no grammar holds but where they say nothing."""
_SILENT = frozenset(
    ("$schema", "$dynamicAnchor", "$recursiveAnchor", "then", "else", "minContains", "maxContains")
)
"""Keywords that say nothing without one that is not held. Any `$schema` is read as the newest one."""
_CONSTRAINING = _UNHELD | {
    "$ref", "type", "enum", "const", "properties", "required", "patternProperties",
    "minItems", "maxItems", "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minProperties", "maxProperties", *LISTED, *SINGLE,
}  # fmt: skip
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MOST_COUNT = 10_000_000
"""More than any answer has: larger bounds are left out. The library's end at 2**32."""
_MOST_NUMBER = 9_200_000_000_000_000_000
"""The library's bounds on numbers are of 64 bits."""
_EVERY_DOUBLE = 1e308
"""A bound of this size is the range of a number, as generators write it, and no constraint."""

Schema = dict[str, Any]


class Plain(NamedTuple):
    schema: Any
    """An object or a boolean."""
    lost: dict[Path, str]
    """The paths of the keywords that are left out, and why."""

    def exact(self) -> Any:
        """Return the schema. Raise Inexpressible if something was left out."""
        for path, why in self.lost.items():
            raise Inexpressible(path, why)
        return self.schema


def plain_schema(root: Schema) -> Plain:
    """Return an equal schema, but for what is lost; `root` is not changed. Raise Inexpressible if it is no
    JSON schema."""
    try:
        writer = _Writer(root)
        return Plain(writer.of(root, ()), writer.lost)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        # A client's schema may be anything.
        raise Inexpressible(*malformed(root, error)) from None


def says_nothing(schema: Any) -> bool:
    """Return whether every value fits it."""
    if not isinstance(schema, dict):
        return schema is True
    asked = schema.keys() & _CONSTRAINING
    return not asked or (asked == {"not"} and says_never(schema["not"]))


def says_never(schema: Any) -> bool:
    """Return whether no value fits it, as `{"not": {}}`, which zod writes for `never`."""
    return schema is False or (isinstance(schema, dict) and "not" in schema and says_nothing(schema["not"]))


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Schema]]:
    """Yield path and content of each schema in `schema` that is an object, itself first."""
    if isinstance(schema, dict):
        yield path, schema
        for step, part in parts(schema):
            yield from subschemas(part, (*path, *step))


def parts(schema: Schema) -> Iterator[tuple[Path, Any]]:
    """Yield path and content of the direct subschemas, definitions first: a fault is in a bad definition, not
    in a reference to it."""
    for keyword in NAMED:
        if isinstance(inside := schema.get(keyword), dict):
            yield from (((keyword, name), part) for name, part in inside.items())
    for keyword in LISTED:
        yield from (((keyword, str(place)), part) for place, part in enumerate(listed(schema, keyword)))
    for keyword in SINGLE:
        if isinstance(inside := schema.get(keyword), dict):
            yield (keyword,), inside


class _Writer:
    """Writes one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._has_resources = any("$id" in one for path, one in subschemas(root) if path)
        self.lost: dict[Path, str] = {}

    def of(self, schema: Any, path: Path) -> Any:
        if not isinstance(schema, dict):
            return schema
        if says_never(schema):
            return False
        plain: Schema = {}
        for keyword, value in schema.items():
            here = (*path, keyword)
            if keyword in NAMED and isinstance(value, dict):
                plain[keyword] = {name: self.of(one, (*here, name)) for name, one in value.items()}
            elif keyword in LISTED and isinstance(value, list):
                plain[keyword] = [self.of(one, (*here, str(i))) for i, one in enumerate(value)]
            elif keyword in SINGLE:
                plain[keyword] = self.of(value, here)
            elif keyword == "$ref" and self._dangles(value):
                # The library must not find there what is written for it.
                self.lost[here] = f"{value!r} does not exist"
            elif keyword not in _UNHELD | _SILENT:
                plain[keyword] = value
        for rewrite in (_drop_annotations, _bound_counts, _bound_numbers):
            rewrite(plain)
        for keyword in filter(_UNHELD.__contains__, schema):
            if not _is_needless(keyword, schema[keyword]):
                self.lost[(*path, keyword)] = f"{keyword!r} cannot be held by a grammar"
        return plain

    def _dangles(self, reference: Any) -> bool:
        is_path = str(reference).startswith("#/") and not self._has_resources
        return is_path and target(self._root, reference) is None


def _is_needless(keyword: str, value: Any) -> bool:
    match keyword:
        case "uniqueItems":
            return value is False
        case "not":
            return says_never(value)
        case "propertyNames" if isinstance(value, dict) and value.get("type") == "string":
            return value.keys() & _CONSTRAINING == {"type"}
        case "propertyNames" | "unevaluatedProperties" | "unevaluatedItems":
            return says_nothing(value)
        case _:
            return False


def _drop_annotations(schema: Schema) -> None:
    if schema.get("format", "date") not in HELD_FORMATS:
        del schema["format"]


def _bound_counts(schema: Schema) -> None:
    for keyword in _COUNTS:
        value = schema.get(keyword)
        if isinstance(value, float) and value.is_integer():
            value = schema[keyword] = int(value)
        if _is_number(value) and (value > _MOST_COUNT if keyword.startswith("max") else value == 0):
            del schema[keyword]


def _bound_numbers(schema: Schema) -> None:
    for name, sign in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1), ("exclusiveMaximum", 1)):
        value = schema.get(name)
        if not _is_number(value) or sign * value < _MOST_NUMBER:
            continue
        if sign * value >= _EVERY_DOUBLE:
            del schema[name]
        else:
            schema[name] = sign * _MOST_NUMBER


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
