"""A client's JSON schema in the keywords that the grammar library has, allowing the same values.

Generators (zod, pydantic, TypeBox, OpenAPI) write keywords that say nothing, as `uniqueItems: false`, and
keywords that others say as well, as `propertyNames`. The library knows neither. A keyword that no grammar
holds is left out and named: it is a fault of a schema that must be kept to the letter.

Bounds that no answer reaches are left out; bounds that the library cannot count up to are the largest that
it can, so that every value that it writes fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import unquote

from scheduler.grammar.lookahead import without_lookaheads
from scheduler.grammar.schema_forms import Inexpressible, Path, listed, malformed
from scheduler.grammar.text_pattern import FORMATS

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
_LONGEST_CHAIN = 8

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


def target(root: Any, reference: Any) -> Any:
    """Return what a reference by path refers to, or None."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found = root
    for step in filter(None, reference.split("/")[1:]):
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isascii() and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            return None
    return found


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
        for rewrite in _REWRITES:
            rewrite(plain)
        for keyword in filter(_UNHELD.__contains__, schema):
            value = schema[keyword]
            if not (
                _is_needless(keyword, value) or (keyword == "propertyNames" and self._names(plain, value))
            ):
                self.lost[(*path, keyword)] = f"{keyword!r} cannot be held by a grammar"
        return plain

    def _dangles(self, reference: Any) -> bool:
        is_path = str(reference).startswith("#/") and not self._has_resources
        return is_path and target(self._root, reference) is None

    def _names(self, schema: Schema, names: Any) -> bool:
        """Write `propertyNames`, which is `names`, as other keywords. Return whether it has been done."""
        for _ in range(_LONGEST_CHAIN):
            if isinstance(names, dict) and names.keys() & _CONSTRAINING == {"$ref"}:
                names = target(self._root, names["$ref"])
        return isinstance(names, dict) and _name_properties(schema, names)


def _is_needless(keyword: str, value: Any) -> bool:
    match keyword:
        case "uniqueItems":
            return value is False
        case "not":
            return says_never(value)
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
    least, required = schema.get("minProperties"), listed(schema, "required")
    if _is_number(least) and least <= len(set(map(str, required))):
        del schema["minProperties"]
    most = schema.get("maxProperties")
    closed = says_never(schema.get("additionalProperties")) and not schema.get("patternProperties")
    if closed and _is_number(most) and most >= len(_members(schema, "properties")):
        del schema["maxProperties"]


def _bound_numbers(schema: Schema) -> None:
    for keyword, others, sign in (("exclusiveMinimum", "minimum", -1), ("exclusiveMaximum", "maximum", 1)):
        # The fourth draft's form.
        if schema.get(keyword) is False:
            del schema[keyword]
        elif schema.get(keyword) is True and others in schema:
            schema[keyword] = schema.pop(others)
        for name in (keyword, others):
            value = schema.get(name)
            if not _is_number(value) or sign * value < _MOST_NUMBER:
                continue
            if sign * value >= _EVERY_DOUBLE:
                del schema[name]
            else:
                schema[name] = sign * _MOST_NUMBER


def _name_properties(schema: Schema, names: Schema) -> bool:
    """Write `names` as the properties that it names, or as a pattern of them. Return whether it is one."""
    allowed = {key: value for key, value in names.items() if key in _CONSTRAINING}
    if allowed.get("type") == "string":
        del allowed["type"]
    if not allowed:
        return True
    if schema.get("patternProperties"):
        return False
    declared, others = _members(schema, "properties"), schema.get("additionalProperties", True)
    if allowed.keys() == {"const"}:
        allowed = {"enum": [allowed["const"]]}
    if allowed.keys() == {"enum"} and isinstance(allowed["enum"], list):
        wanted = dict.fromkeys(name for name in allowed["enum"] if isinstance(name, str))
        schema["properties"] = {
            **{name: one if name in wanted else False for name, one in declared.items()},
            **{name: others for name in wanted if name not in declared},
        }
        schema["additionalProperties"] = False
    elif not declared and (pattern := _name_pattern(allowed)) is not None:
        schema["patternProperties"], schema["additionalProperties"] = {pattern: others}, False
    else:
        return False
    return True


def _name_pattern(allowed: Schema) -> str | None:
    """Return the pattern of names that fit these keywords, or None if it would take more than one."""
    pattern = allowed.get("pattern")
    if allowed.keys() == {"pattern"} and isinstance(pattern, str) and "(?" not in pattern.replace("(?:", ""):
        return pattern
    if allowed.keys() == {"format"} and allowed["format"] in FORMATS:
        return f"^({FORMATS[allowed['format']]})$"
    if allowed.keys() <= {"minLength", "maxLength"}:
        return f"^[\\s\\S]{{{allowed.get('minLength', 0)},{allowed.get('maxLength', '')}}}$"
    return None


def _list_items(schema: Schema) -> None:
    """`additionalItems` speaks of a list of `items` only; elsewhere the library would take it for `items`."""
    if not isinstance(schema.get("items"), list):
        schema.pop("additionalItems", None)


def _look_ahead(schema: Schema) -> None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and (found := without_lookaheads(pattern)) is not None:
        schema["pattern"], *more = found
        if more:
            schema["allOf"] = [*listed(schema, "allOf"), *({"pattern": one} for one in more)]


_REWRITES: tuple[Callable[[Schema], None], ...] = (
    _drop_annotations,
    _bound_counts,
    _bound_numbers,
    _list_items,
    _look_ahead,
)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _members(schema: Schema, keyword: str) -> Schema:
    inside = schema.get(keyword)
    return inside if isinstance(inside, dict) else {}
