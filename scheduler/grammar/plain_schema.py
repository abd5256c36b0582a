"""A client's JSON schema in the keywords that the grammar library has, allowing the same values.

Generators (zod, pydantic, TypeBox, OpenAPI) write keywords that say nothing, as `uniqueItems: false`, and
keywords that others say as well, as `unevaluatedProperties: false` of an object without alternatives. The
library knows neither. What has no equal form stays as it is, so that the library refuses it.

Bounds that no answer reaches are left out; bounds that the library cannot count up to are the largest that
it can, so that every value that it writes fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard
from urllib.parse import unquote

from scheduler.grammar.lookahead import without_lookaheads
from scheduler.grammar.text_pattern import FORMATS

NAMED = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies")
"""Keywords whose members are schemas."""
LISTED = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
SINGLE = (
    "items", "additionalItems", "unevaluatedItems", "additionalProperties", "unevaluatedProperties", "not",
    "if", "then", "else", "contains", "propertyNames",
)  # fmt: skip
HELD_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Values of `format` that the library holds. Any other is an annotation, as JSON schema has it."""
_CONSTRAINING = frozenset(
    (
    "$ref", "$dynamicRef", "$recursiveRef", "type", "enum", "const", "properties", "required",
    "additionalProperties", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems",
    "minProperties", "maxProperties",
    "dependentRequired", *NAMED, *LISTED, *SINGLE,
    )
) - {"$defs", "definitions"}  # fmt: skip
_IN_PLACE = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies"))
"""Keywords whose schemas hold for the same value: what they name is evaluated, too."""
_DEPENDING = _IN_PLACE - {"$ref", "allOf"} | {"patternProperties"}
"""Keywords for which the value itself decides which names are evaluated."""
_COUNTS = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
)
_MOST_COUNT = 10_000_000
"""More than any answer has: larger bounds are left out. The library's end at 2**32."""
_MOST_NUMBER = 9_200_000_000_000_000_000
"""The library's bounds on numbers are of 64 bits."""
_EVERY_DOUBLE = 1e308
"""A bound of this size is the range of a number, as generators write it, and no constraint."""
_DEEPEST = 100
_LONGEST_CHAIN = 8

Schema = dict[str, Any]


def plain_schema(root: Schema) -> Any:
    """Return an equal schema, an object or a boolean; `root` itself if it is no JSON schema. `root` is not
    changed."""
    try:
        return _Plain(root).of(root, 0)
    except (TypeError, ValueError, AttributeError, RecursionError):
        # A client's schema may be anything. The library says what is wrong with it.
        return root


def says_nothing(schema: Any) -> bool:
    """Return whether every value fits it."""
    if not isinstance(schema, dict):
        return schema is True
    if not _CONSTRAINING & schema.keys():
        return True
    return schema.keys() & _CONSTRAINING == {"not"} and says_never(schema["not"])


def says_never(schema: Any) -> bool:
    """Return whether no value fits it, as `{"not": {}}`, which zod writes for `never`."""
    return schema is False or (isinstance(schema, dict) and "not" in schema and says_nothing(schema["not"]))


class References:
    """What the references of one schema refer to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._named: dict[str, Any] | None = None

    def target(self, reference: Any) -> tuple[tuple[str, ...], Any] | None:
        """Return the path and the target of a reference within this schema, or None."""
        if not isinstance(reference, str):
            return None
        if reference in ("#", "#/") or reference.startswith("#/"):
            path = tuple(
                unquote(step).replace("~1", "/").replace("~0", "~")
                for step in reference.split("/")[1:]
                if step
            )
            found = self._root
            for step in path:
                if isinstance(found, list) and step.isascii() and step.isdecimal() and int(step) < len(found):
                    found = found[int(step)]
                elif isinstance(found, dict) and step in found:
                    found = found[step]
                else:
                    return None
            return path, found
        if self._named is None:
            self._named = {}
            for path, one in subschemas(self._root):
                for name in _names(one):
                    self._named.setdefault(name, (path, one))
        found = self._named.get(reference)
        return found if found is None else (found[0], found[1])


def _names(schema: Schema) -> Iterator[str]:
    for keyword, mark in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
        if isinstance(name := schema.get(keyword), str):
            yield mark + name


def subschemas(
    schema: Any, path: tuple[str, ...] = (), depth: int = 0
) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Yield path and content of each schema in `schema`, itself first."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    yield path, schema
    for step, part in parts(schema):
        yield from subschemas(part, (*path, *step), depth + 1)


def parts(schema: Schema) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Yield path and content of the direct subschemas, definitions first: a fault is in a bad definition, not
    in a reference to it."""
    for keyword in NAMED:
        if isinstance(inside := schema.get(keyword), dict):
            yield from (((keyword, name), part) for name, part in inside.items() if isinstance(part, dict))
    for keyword in LISTED:
        if isinstance(inside := schema.get(keyword), list):
            yield from (((keyword, str(i)), part) for i, part in enumerate(inside) if isinstance(part, dict))
    for keyword in SINGLE:
        if isinstance(inside := schema.get(keyword), dict):
            yield (keyword,), inside


class _Plain:
    """Writes one schema."""

    def __init__(self, root: Schema) -> None:
        self._references = References(root)
        every = list(subschemas(root))
        self._has_resources = any("$id" in one for path, one in every if path)
        self._dynamic = [
            one["$dynamicAnchor"] for _, one in every if isinstance(one.get("$dynamicAnchor"), str)
        ]

    def of(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return schema
        if says_never(schema):
            return False
        plain: Schema = {}
        for keyword, value in schema.items():
            if keyword in NAMED and isinstance(value, dict):
                plain[keyword] = {name: self.of(one, depth + 1) for name, one in value.items()}
            elif keyword in LISTED and isinstance(value, list):
                plain[keyword] = [self.of(one, depth + 1) for one in value]
            elif keyword in SINGLE:
                plain[keyword] = self.of(value, depth + 1)
            else:
                plain[keyword] = value
        for rewrite in _REWRITES:
            rewrite(plain)
        reference = str(schema.get("$ref", ""))
        if reference.startswith("#/") and not (self._has_resources or self._references.target(reference)):
            # It leads nowhere, and the library must not find there what is written for it.
            plain["$ref"] = f"{reference}/"
        if isinstance(names := plain.get("propertyNames"), dict):
            _name_properties(plain, self._resolved(names))
        self._rewrite_dynamic(plain)
        self._rewrite_unevaluated(plain)
        return plain

    def _resolved(self, schema: Schema) -> Schema:
        """Return the target of a schema that is nothing but a reference, else the schema."""
        for _ in range(_LONGEST_CHAIN):
            if schema.keys() & _CONSTRAINING != {"$ref"}:
                break
            found = self._references.target(schema["$ref"])
            if found is None or not isinstance(found[1], dict):
                break
            schema = found[1]
        return schema

    def _rewrite_dynamic(self, schema: Schema) -> None:
        """In one document that names each anchor once, dynamic references are references."""
        if self._has_resources:
            return
        if (anchor := schema.get("$dynamicAnchor")) is not None and self._dynamic.count(anchor) == 1:
            schema.setdefault("$anchor", schema.pop("$dynamicAnchor"))
        schema.pop("$recursiveAnchor", None)
        if "$ref" in schema:
            return
        if schema.get("$recursiveRef") == "#":
            schema["$ref"] = schema.pop("$recursiveRef")
        dynamic = schema.get("$dynamicRef")
        if isinstance(dynamic, str) and (dynamic.startswith("#/") or self._dynamic.count(dynamic[1:]) == 1):
            schema["$ref"] = schema.pop("$dynamicRef")

    def _rewrite_unevaluated(self, schema: Schema) -> None:
        if "unevaluatedProperties" in schema:
            rest = schema["unevaluatedProperties"]
            if says_nothing(rest) or "additionalProperties" in schema:
                del schema["unevaluatedProperties"]
            elif not _IN_PLACE & schema.keys():
                schema["additionalProperties"] = schema.pop("unevaluatedProperties")
            elif (names := self._evaluated(schema, 0)) is not None:
                del schema["unevaluatedProperties"]
                if _EVERY not in names:
                    closed = {"properties": dict.fromkeys(names, True), "additionalProperties": rest}
                    schema["allOf"] = [*schema.get("allOf", ()), closed]
        if "unevaluatedItems" in schema:
            if says_nothing(schema["unevaluatedItems"]) or (
                "items" in schema and not isinstance(schema["items"], list)
            ):
                del schema["unevaluatedItems"]
            elif not (_IN_PLACE | {"contains", "items"}) & schema.keys():
                schema["items"] = schema.pop("unevaluatedItems")

    def _evaluated(self, schema: Any, depth: int) -> dict[str, None] | None:
        """Return the names of properties that the schema speaks of; None if they depend on the value."""
        if not isinstance(schema, dict):
            return {}
        if depth > _DEEPEST or schema.keys() & _DEPENDING:
            return None
        names = dict.fromkeys(_members(schema, "properties"))
        if "additionalProperties" in schema or (depth and "unevaluatedProperties" in schema):
            names[_EVERY] = None
        inner = [*_listed(schema, "allOf")]
        if "$ref" in schema:
            if (found := self._references.target(schema["$ref"])) is None:
                return None
            inner.append(found[1])
        for one in inner:
            if (more := self._evaluated(one, depth + 1)) is None:
                return None
            names |= more
        return names


_EVERY = "\0every"
"""Stands for all names, in a set of names."""


def _drop_annotations(schema: Schema) -> None:
    """Any `$schema` is read as the newest one: the library knows five addresses of it."""
    schema.pop("$schema", None)
    if schema.get("format", "date") not in HELD_FORMATS:
        del schema["format"]
    if says_never(schema.get("not")):
        del schema["not"]
    if schema.get("propertyNames") is True:
        del schema["propertyNames"]
    if schema.get("uniqueItems") is False or (
        schema.get("uniqueItems") is True and schema.get("maxItems") in (0, 1)
    ):
        del schema["uniqueItems"]


def _apply_condition(schema: Schema) -> None:
    if "if" not in schema:
        branch = None
    elif says_nothing(schema["if"]):
        branch = schema.get("then", True)
    elif says_never(schema["if"]):
        branch = schema.get("else", True)
    elif not (says_nothing(schema.get("then", True)) and says_nothing(schema.get("else", True))):
        return
    else:
        branch = None
    for keyword in ("if", "then", "else"):
        schema.pop(keyword, None)
    if branch is not None and not says_nothing(branch):
        schema["allOf"] = [*_listed(schema, "allOf"), branch]


def _bound_counts(schema: Schema) -> None:
    for keyword in _COUNTS:
        value = schema.get(keyword)
        if isinstance(value, float) and value.is_integer():
            value = schema[keyword] = int(value)
        is_nothing = (keyword.startswith("max") and _is_number(value) and value > _MOST_COUNT) or (
            keyword in ("minLength", "minItems", "minProperties") and _is_number(value) and value == 0
        )
        if is_nothing:
            del schema[keyword]
    least, required = schema.get("minProperties"), _listed(schema, "required")
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


def _count_contained(schema: Schema) -> None:
    if "contains" not in schema:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if not _is_number(least) or not (most is None or _is_number(most)):
        return
    if least == 0 and most is None:
        pass
    elif says_nothing(schema["contains"]):
        schema["minItems"] = max(schema.get("minItems", 0), least)
        if most is not None:
            schema["maxItems"] = min(schema.get("maxItems", most), most)
    else:
        return
    for keyword in ("contains", "minContains", "maxContains"):
        schema.pop(keyword, None)


def _require_dependents(schema: Schema) -> None:
    """A dependent of a required property is required."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        if not isinstance(depends := schema.get(keyword), dict):
            continue
        left = {}
        for name, asked in depends.items():
            required = _listed(schema, "required")
            if isinstance(asked, list) and name in required:
                schema["required"] = list(dict.fromkeys([*required, *asked]))
            elif not (asked == [] or says_nothing(asked)):
                left[name] = asked
        if left:
            schema[keyword] = left
        else:
            del schema[keyword]


def _name_properties(schema: Schema, names: Schema) -> None:
    """Write `propertyNames`, which is `names`, as the properties that it names, or as a pattern of them."""
    allowed = {key: value for key, value in names.items() if key in _CONSTRAINING}
    if allowed.get("type") == "string":
        del allowed["type"]
    if not allowed:
        del schema["propertyNames"]
        return
    if schema.get("patternProperties"):
        return
    declared, others = _members(schema, "properties"), schema.get("additionalProperties", True)
    if allowed.keys() == {"const"}:
        allowed = {"enum": [allowed["const"]]}
    if allowed.keys() == {"enum"} and isinstance(allowed["enum"], list):
        listed = dict.fromkeys(name for name in allowed["enum"] if isinstance(name, str))
        schema["properties"] = {
            **{name: one if name in listed else False for name, one in declared.items()},
            **{name: others for name in listed if name not in declared},
        }
        schema["additionalProperties"] = False
    elif not declared and (pattern := _name_pattern(allowed)) is not None:
        schema["patternProperties"], schema["additionalProperties"] = {pattern: others}, False
    else:
        return
    del schema["propertyNames"]


def _name_pattern(allowed: Schema) -> str | None:
    """Return the pattern of names that fit these keywords, or None if it would take more than one."""
    if allowed.keys() == {"pattern"} and isinstance(allowed["pattern"], str):
        return allowed["pattern"]
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
            schema["allOf"] = [*_listed(schema, "allOf"), *({"pattern": one} for one in more)]


_REWRITES: tuple[Callable[[Schema], None], ...] = (
    _drop_annotations,
    _apply_condition,
    _bound_counts,
    _bound_numbers,
    _count_contained,
    _require_dependents,
    _list_items,
    _look_ahead,
)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _members(schema: Schema, keyword: str) -> Schema:
    inside = schema.get(keyword)
    return inside if isinstance(inside, dict) else {}


def _listed(schema: Schema, keyword: str) -> list[Any]:
    inside = schema.get(keyword)
    return inside if isinstance(inside, list) else []
