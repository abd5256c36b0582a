"""A JSON schema as a list of alternatives, each of one JSON type and without references or combinators.

Grammars of other notations than JSON are made from these. A keyword that has no such form is a fault if the
schema must be kept to the letter, and is ignored if it need not be.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from scheduler.answer.schema_check import JSON_TYPES, SchemaCheck, StepBudget, json_types, listed

_MOST_FORMS = 64
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_MEANING = frozenset(
    (
    "type", "enum", "const", "properties", "required", "additionalProperties", "items",
    "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    )
)  # fmt: skip
_UNKNOWN = ("maxProperties", "minProperties", "patternProperties")
"""Keywords of a plain schema that constrain a value in a way that no form has."""
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")

Path = tuple[str, ...]


class Inexpressible(Exception):
    """A part of a schema that no rule can express. `path`: its place in the tool's parameters."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


class CannotWrite(Inexpressible):
    """A part that the notation has no way to write: where it is optional, it is left out, also of a strict
    schema."""


@dataclass(frozen=True, slots=True)
class Form:
    """`kind` is a JSON type; `schema` has the keywords of `_MEANING` only."""

    kind: str
    schema: dict[str, Any]
    path: Path

    @property
    def choices(self) -> list[Any] | None:
        """Return the only values that it allows, or None if it does not name them."""
        if (named := _constants(self.schema)) is None:
            return None
        if "const" in self.schema and isinstance(choices := self.schema.get("enum"), list):
            named = [value for value in named if any(same_value(value, one) for one in choices)]
        check = SchemaCheck({}, _endless())
        others = {name: value for name, value in self.schema.items() if name not in ("const", "enum")}
        return [value for value in named if check.accepts(value, {**others, "type": self.kind})]


class SchemaForms:
    """The forms of one tool's schema and of its parts."""

    def __init__(self, root: Mapping[str, Any], *, strict: bool) -> None:
        """`strict`: whether keywords without a form are faults; otherwise they are ignored."""
        self.root = root
        self.strict = strict
        self._check = SchemaCheck(root, _endless())

    def of(self, schema: Any, path: Path) -> list[Form]:
        """Return the forms of `schema`; none if no value fits it. Raise Inexpressible."""
        found = [form for one in self._expanded(schema, path, ()) for form in _typed(one, path)]
        kinds = {form.kind for form in found if not form.schema.keys() & _MEANING - {"type"}}
        # A number without bounds is every integer, too.
        return [form for form in found if form.kind != "integer" or "number" not in kinds]

    def fault(self, path: Path, why: str) -> None:
        """Raise Inexpressible if the schema must be kept to the letter."""
        if self.strict:
            raise Inexpressible(path, why)

    def _expanded(self, schema: Any, path: Path, through: tuple[str, ...]) -> list[dict[str, Any]]:
        if not isinstance(schema, Mapping):
            return [{}] if schema is not False else []
        self._check_known(schema, path)
        meant = {name: value for name, value in schema.items() if name in _MEANING}
        if isinstance(places := schema.get("items"), list):
            meant |= {"prefixItems": places, "items": schema.get("additionalItems", True)}
        found = [meant]
        if "$ref" in schema:
            reference = str(schema["$ref"])
            target = self._check.resolve({"$ref": reference})
            if reference in through or target is None:
                raise Inexpressible((*path, "$ref"), f"{reference!r} refers to nothing that can be used")
            found = self._both(found, self._expanded(target, path, (*through, reference)), path)
        for number, one in enumerate(listed(schema, "allOf")):
            found = self._both(found, self._expanded(one, (*path, "allOf", str(number)), through), path)
        for keyword in ("anyOf", "oneOf"):
            if branches := listed(schema, keyword):
                if keyword == "oneOf":
                    self._check_apart(branches, (*path, keyword))
                some = [
                    form
                    for number, one in enumerate(branches)
                    for form in self._expanded(one, (*path, keyword, str(number)), through)
                ]
                found = self._both(found, some, path)
        return found

    def _check_known(self, schema: Mapping[str, Any], path: Path) -> None:
        for keyword in _UNKNOWN:
            if keyword in schema:
                self.fault((*path, keyword), f"{keyword!r} cannot be held in this model's notation of calls")
        declared = schema.get("type")
        kinds = declared if isinstance(declared, list) else [declared] if "type" in schema else []
        if not all(isinstance(kind, str) and kind in JSON_TYPES for kind in kinds):
            self.fault((*path, "type"), f"{declared!r} is no JSON type")

    def _check_apart(self, branches: list[Any], path: Path) -> None:
        if not self.strict:
            return
        types = [json_types(one, self.root, _endless()) for one in branches]
        for (one, its), (other, others) in combinations(zip(branches, types, strict=True), 2):
            common = its & others
            if common and not (common == {"object"} and self._differ(one, other)):
                self.fault(path, "more than one of its schemas may fit a value")

    def _differ(self, one: Any, other: Any) -> bool:
        """Return whether a property that both require separates two objects."""
        first, second = self._check.resolve(one) or {}, self._check.resolve(other) or {}
        shared = set(listed(first, "required")) & set(listed(second, "required"))
        for name in shared:
            a, b = (_constants(schema.get("properties", {}).get(name)) for schema in (first, second))
            if a is not None and b is not None and set(map(value_key, a)).isdisjoint(map(value_key, b)):
                return True
        return False

    def _both(
        self, some: list[dict[str, Any]], others: list[dict[str, Any]], path: Path
    ) -> list[dict[str, Any]]:
        if len(some) * len(others) > _MOST_FORMS:
            raise Inexpressible(path, f"it has more than {_MOST_FORMS} alternatives")
        merged = (self._merged(one, other, path) for one in some for other in others)
        return [one for one in merged if one is not None]

    def _merged(self, one: dict[str, Any], other: dict[str, Any], path: Path) -> dict[str, Any] | None:
        """Return what fits both, or None if nothing does."""
        merged = dict(one)
        for keyword, value in other.items():
            before = merged.get(keyword, value)
            match keyword:
                case "type":
                    if not (kinds := _kinds(before) & _kinds(value)):
                        return None
                    merged[keyword] = [kind for kind in _TYPES if kind in kinds]
                case "properties" | "additionalProperties" | "prefixItems" | "items":
                    pass
                case "required":
                    merged[keyword] = list(dict.fromkeys([*before, *value]))
                case "enum":
                    kept = set(map(value_key, before))
                    merged[keyword] = [choice for choice in value if value_key(choice) in kept]
                    if not merged[keyword]:
                        # An empty list would count as no constraint.
                        return None
                case _ if same_value(before, value):
                    merged[keyword] = value
                case _ if keyword in _LEAST:
                    merged[keyword] = max(before, value)
                case _ if keyword in _MOST:
                    merged[keyword] = min(before, value)
                case "const":
                    return None
                case _:
                    self.fault((*path, keyword), "it stands beside another one in 'allOf' or '$ref'")
        self._merge_objects(merged, one, other)
        self._merge_arrays(merged, one, other)
        return merged

    def _merge_objects(self, merged: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> None:
        mine, theirs = one.get("properties", {}), other.get("properties", {})
        if mine or theirs:
            merged["properties"] = {
                name: self._of_both(_member(one, name), _member(other, name)) for name in {**mine, **theirs}
            }
        if "additionalProperties" in one or "additionalProperties" in other:
            merged["additionalProperties"] = self._of_both(
                one.get("additionalProperties", True), other.get("additionalProperties", True)
            )

    def _merge_arrays(self, merged: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> None:
        if places := max(len(listed(one, "prefixItems")), len(listed(other, "prefixItems"))):
            merged["prefixItems"] = [
                self._of_both(_item(one, place), _item(other, place)) for place in range(places)
            ]
        if "items" in one or "items" in other:
            merged["items"] = self._of_both(one.get("items", True), other.get("items", True))

    def _of_both(self, one: Any, other: Any) -> Any:
        if one is False or other is False:
            return False
        if one is True or same_value(one, other):
            return other
        return one if other is True else {"allOf": [one, other]}


def value_key(value: Any) -> Hashable:
    """Return what equal JSON values have in common: 1 and 1.0 are equal, 1 and true are not, as they are in
    Python."""
    match value:
        case bool():
            return bool, value
        case dict():
            return dict, frozenset((name, value_key(item)) for name, item in value.items())
        case list():
            return list, tuple(value_key(item) for item in value)
        case _:
            return cast("Hashable", value)


def same_value(one: Any, other: Any) -> bool:
    """Return whether these JSON values are equal."""
    # Python's own comparison is fast, and finds at least as many values equal.
    return one is other or (one == other and value_key(one) == value_key(other))


def _endless() -> StepBudget:
    """Return a budget for a process that has limits of its own."""
    return StepBudget(sys.maxsize)


def schema_error(schema: Any) -> tuple[Path, str] | None:
    """Return path and message of what makes `schema` invalid, or None."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as fault:
        return tuple(str(step) for step in fault.absolute_path), str(fault.message)[:400]
    except Exception:  # It has a reference that does not resolve.
        pass
    return None


def malformed(schema: Any, error: Exception) -> tuple[Path, str]:
    """Return path and message of the fault that makes `schema` invalid; `error` is what reading it raised."""
    why = "it is nested too deeply" if isinstance(error, RecursionError) else "it is no JSON schema"
    return schema_error(schema) or ((), why)


def _member(schema: dict[str, Any], name: str) -> Any:
    declared = schema.get("properties", {})
    return declared[name] if name in declared else schema.get("additionalProperties", True)


def _item(schema: dict[str, Any], place: int) -> Any:
    prefix = listed(schema, "prefixItems")
    return prefix[place] if place < len(prefix) else schema.get("items", True)


def _typed(schema: dict[str, Any], path: Path) -> Iterator[Form]:
    kinds = _kinds(schema["type"]) if "type" in schema else None
    if kinds is None:
        # These keywords constrain objects or arrays only, but their author means that the value is one.
        kinds = frozenset(
            ("object",) if "properties" in schema else ("array",) if "items" in schema else _TYPES
        )
    if "number" in kinds:
        kinds -= {"integer"}
    for kind in _TYPES:
        if kind in kinds:
            form = Form(kind, {name: value for name, value in schema.items() if name != "type"}, path)
            if form.choices != []:
                yield form


def _kinds(declared: Any) -> frozenset[str]:
    """Return the types of the keyword `type`, without unknown ones."""
    kinds = frozenset(declared if isinstance(declared, list) else [str(declared)]) & JSON_TYPES
    return kinds | {"integer"} if "number" in kinds else kinds or JSON_TYPES


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    return [schema["const"]] if "const" in schema else listed(schema, "enum") or None
