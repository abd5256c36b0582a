"""Whether a value may be valid under a JSON schema, decided within a bounded number of steps.

The client writes the schema and the model the value, so its cost needs a fixed bound, in a worker too.
The `jsonschema` package has none: 2 KB of doubled `$ref`s make it visit 2^24 nodes, a subschema with its own
`$schema` re-enables keywords that the caller disabled, and `additionalProperties` and `unevaluatedProperties`
match the client's regular expressions, which may take Python's `re` exponential time.

The check is one-sided: it accepts all valid values, and some invalid ones. It ignores keywords that no
coercion depends on (`pattern`, `format`, `not`, `uniqueItems`, `if`, ...), and treats `oneOf` as `anyOf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import ge, gt, le, lt
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]
JSON_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))

ANSWER_STEPS = 5_000
"""The budget for all arguments of one answer: 5 to 30 ms. A call with a thousand values takes about three
thousand."""
TOOL_STEPS = 2_000
"""The budget for the types of one tool's parameters: past it, one may be anything."""
_DEEPEST = 64
_DEEPEST_TYPE = 16
_LONGEST_POINTER = 1_000
_LONGEST_CHAIN = 8


class StepsExhausted(Exception):
    """The step budget is exhausted; the check is undecided."""


class StepBudget:
    """Remaining steps: one for each pair of value and subschema, and one for each list entry."""

    def __init__(self, steps: int = ANSWER_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise StepsExhausted


class SchemaCheck:
    def __init__(self, root: Schema, budget: StepBudget) -> None:
        self._root = root
        self.budget = budget

    def accepts(self, value: Any, schema: Any, depth: int = _DEEPEST) -> bool:
        """Return False only if `value` is invalid. Raise StepsExhausted."""
        self.budget.spend()
        if schema is False:
            return False
        if depth == 0 or not isinstance(schema, Mapping):
            return True
        types, choices = self.types(schema), self.choices(schema)
        return (
            (not types or is_of(value, types))
            and (choices is None or any(_may_equal(value, one) for one in choices))
            and _is_within_bounds(value, schema)
            and all(any(self.accepts(value, one, depth - 1) for one in some) for some in self._parts(schema))
            and all(self.accepts(item, one, depth - 1) for item, one in self._inside(value, schema))
        )

    def may_be(self, schema: Any, depth: int = _DEEPEST_TYPE) -> frozenset[str]:
        """Return the JSON types that `schema` may allow. Raise StepsExhausted."""
        self.budget.spend()
        if schema is False:
            return frozenset()
        if depth == 0 or not isinstance(schema, Mapping):
            return JSON_TYPES
        found = JSON_TYPES
        if declared := frozenset(self.types(schema)):
            declared |= {"integer"} if "number" in declared else set()
            found &= declared if declared <= JSON_TYPES else JSON_TYPES
        elif "properties" in schema:
            # The keyword constrains objects only, but its author means that the value is one.
            found &= {"object"}
        elif "items" in schema:
            found &= {"array"}
        if (choices := self.choices(schema)) is not None:
            found &= {kind for kind in found if any(map(_IS_TYPE[kind], choices))}
        for some in self._parts(schema):
            found &= frozenset().union(*(self.may_be(one, depth - 1) for one in some))
        return found

    def resolve(self, schema: Any) -> Schema | None:
        """Return the schema, or the target of its local `$ref`; None if that is not a schema."""
        for _ in range(_LONGEST_CHAIN):
            if not isinstance(schema, Mapping):
                return None
            if "$ref" not in schema:
                return schema
            schema = self._target(schema["$ref"])
        return None

    def types(self, schema: Schema) -> tuple[str, ...]:
        """Return the types that `schema` allows; an empty tuple allows any."""
        if isinstance(kind := schema.get("type"), str):
            return (kind,)
        kinds = listed(schema, "type")
        self.budget.spend(len(kinds))
        return tuple([kind for kind in kinds if isinstance(kind, str)])

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or len(reference) > _LONGEST_POINTER:
            return None
        self.budget.spend(1 + reference.count("/"))
        return target(self._root, reference)

    def choices(self, schema: Schema) -> Sequence[Any] | None:
        """Return the values that `schema` lists, if it does."""
        if "const" in schema:
            return [schema["const"]]
        if not isinstance(choices := schema.get("enum"), list):
            return None
        self.budget.spend(len(choices))
        return choices

    def _parts(self, schema: Schema) -> Iterator[list[Any]]:
        """Yield lists of schemas, of each of which one must hold."""
        if "$ref" in schema:
            yield [self._target(schema["$ref"])]
        for keyword in ("anyOf", "oneOf"):
            if some := listed(schema, keyword):
                yield some
        for one in listed(schema, "allOf"):
            yield [one]

    def _inside(self, value: Any, schema: Schema) -> Iterator[tuple[Any, Any]]:
        """Yield what is in `value`, with its schema."""
        if isinstance(value, dict):
            required, named = listed(schema, "required"), properties_of(schema)
            self.budget.spend(len(required))
            if any(isinstance(name, str) and name not in value for name in required):
                yield None, False
            # The check does not match the patterns, so one of them may cover any name.
            others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
            if others is not True or named:
                yield from ((item, named.get(name, others)) for name, item in value.items())
        elif isinstance(value, list):
            places, rest = listed(schema, "prefixItems"), schema.get("items", True)
            if places or rest is not True:
                yield from zip_longest(value, places[: len(value)], fillvalue=rest)


def json_types(schema: Any, root: Schema, budget: StepBudget | None = None) -> frozenset[str]:
    """Return the JSON types that `schema` may allow; local references resolve in `root`."""
    try:
        return SchemaCheck(root, budget or StepBudget(TOOL_STEPS)).may_be(schema)
    except StepsExhausted:
        return JSON_TYPES


def target(root: Any, reference: Any) -> Any:
    """Return what a reference by path refers to, or None."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found = root
    for step in filter(None, reference.split("/")[1:]):
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isascii() and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, Mapping) and step in found:
            found = found[step]
        else:
            return None
    return found


def listed(schema: Schema, keyword: str) -> list[Any]:
    inside = schema.get(keyword)
    return inside if isinstance(inside, list) else []


def properties_of(schema: Schema) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def is_of(value: Any, types: tuple[str, ...]) -> bool:
    """Return whether `value` is of one of these JSON types. Unknown names count as any type."""
    return any(kind not in _IS_TYPE or _IS_TYPE[kind](value) for kind in types)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_IS_TYPE: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _may_equal(value: Any, wanted: Any) -> bool:
    """Return whether the values may be equal. Containers compare by type only: a full comparison takes time
    proportional to their size."""
    if isinstance(value, dict | list):
        return isinstance(wanted, dict if isinstance(value, dict) else list)
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return bool(value == wanted)


def _is_within_bounds(value: Any, schema: Schema) -> bool:
    for keyword in schema.keys() & _BOUNDS.keys():
        kind, holds = _BOUNDS[keyword]
        if not _IS_TYPE[kind](value) or not _is_number(bound := schema[keyword]):
            continue
        if not holds(value if kind == "number" else len(value), bound):
            return False
    return True


_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    **{"minimum": ("number", ge), "maximum": ("number", le)},
    **{"exclusiveMinimum": ("number", gt), "exclusiveMaximum": ("number", lt)},
    **{"minLength": ("string", ge), "maxLength": ("string", le)},
    **{"minItems": ("array", ge), "maxItems": ("array", le)},
    **{"minProperties": ("object", ge), "maxProperties": ("object", le)},
}
