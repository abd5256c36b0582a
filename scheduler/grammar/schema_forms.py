"""A JSON schema as a list of alternatives, each of one JSON type and without references or combinators.

Grammars of other notations than JSON are made from these. What has no such form is a fault of a schema that
must be kept to the letter, and left out of one that need not be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from scheduler.answer.dialects.parameter_kind import JSON_TYPES, json_types
from scheduler.answer.tool_calls.schema_check import SchemaCheck, StepBudget, StepsExhausted

MOST_STEPS = 20_000
"""Of one tool's schema: 64 tools of agents take 50 to 300 each."""
_MOST_FORMS = 64
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf")
_MEANING = frozenset(
    (
    "type", "enum", "const", "properties", "required", "additionalProperties", "items",
    "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    )
)  # fmt: skip
_UNKNOWN = frozenset(
    (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties",
    "propertyNames", "unevaluatedProperties", "unevaluatedItems", "contains", "uniqueItems",
    "minProperties", "maxProperties", "$dynamicRef", "additionalItems",
    )
)  # fmt: skip
"""Keywords that constrain a value in a way that no form has."""
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")

Path = tuple[str, ...]


class Inexpressible(Exception):
    """A part of a schema that no rule can say. `path`: its place in the tool's parameters."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


class CannotWrite(Inexpressible):
    """The dialect itself has no way to write it: where it need not be written, it is left out."""


@dataclass(frozen=True, slots=True)
class Form:
    """`kind` is a JSON type; `schema` has the keywords of `_MEANING` only."""

    kind: str
    schema: dict[str, Any]
    path: Path

    @property
    def choices(self) -> list[Any] | None:
        """The only values, if it names them; None: it does not."""
        if "const" in self.schema:
            listed = [self.schema["const"]]
        elif isinstance(named := self.schema.get("enum"), list):
            listed = named
        else:
            return None
        check = SchemaCheck({}, StepBudget(MOST_STEPS))
        return [value for value in listed if check.accepts(value, {**self.schema, "type": self.kind})]


class SchemaForms:
    """The forms of one tool's schema and of its parts."""

    def __init__(self, root: Mapping[str, Any], *, strict: bool) -> None:
        """`strict`: keywords without a form are faults; else they are ignored."""
        self.root = root
        self.strict = strict
        self._budget = StepBudget(MOST_STEPS)
        self._check = SchemaCheck(root, self._budget)

    def of(self, schema: Any, path: Path) -> list[Form]:
        """Empty if nothing fits. Raises Inexpressible."""
        try:
            found = [form for one in self._expanded(schema, path, ()) for form in _typed(one, path)]
        except StepsExhausted:
            raise Inexpressible((), "the schema is too large") from None
        kinds = {form.kind for form in found if not form.schema.keys() & _MEANING - {"type"}}
        # A number without bounds is every integer, too.
        return [form for form in found if form.kind != "integer" or "number" not in kinds]

    def fault(self, path: Path, why: str) -> None:
        """Raises Inexpressible if the schema must be kept to the letter."""
        if self.strict:
            raise Inexpressible(path, why)

    def _expanded(self, schema: Any, path: Path, through: tuple[str, ...]) -> list[dict[str, Any]]:
        self._budget.spend()
        if schema is True or schema is False or not isinstance(schema, Mapping):
            return [{}] if schema is not False else []
        self._check_known(schema, path)
        found = [{name: value for name, value in schema.items() if name in _MEANING}]
        if "$ref" in schema:
            reference = str(schema["$ref"])
            target = self._check.resolve({"$ref": reference})
            if reference in through or target is None:
                raise Inexpressible((*path, "$ref"), f"{reference!r} refers to nothing that can be used")
            found = self._both(found, self._expanded(target, path, (*through, reference)), path)
        for number, one in enumerate(_listed(schema, "allOf")):
            found = self._both(found, self._expanded(one, (*path, "allOf", str(number)), through), path)
        for keyword in ("anyOf", "oneOf"):
            if branches := _listed(schema, keyword):
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
        for keyword in sorted(_UNKNOWN & schema.keys()):
            value = schema[keyword]
            if value is False or (keyword == "unevaluatedProperties" and value in (True, {})):
                continue
            if keyword == "minProperties" and value in (0, *range(len(_listed(schema, "required")) + 1)):
                continue
            self.fault((*path, keyword), f"{keyword!r} cannot be held in this model's dialect of calls")
        declared = schema.get("type")
        kinds = declared if isinstance(declared, list) else [declared] if "type" in schema else []
        if not all(isinstance(kind, str) and kind in JSON_TYPES for kind in kinds):
            self.fault((*path, "type"), f"{declared!r} is no JSON type")

    def _check_apart(self, branches: list[Any], path: Path) -> None:
        if not self.strict:
            return
        if len(branches) > _MOST_FORMS:
            self.fault(path, f"it has more than {_MOST_FORMS} alternatives")
        types = [json_types(one, self.root, self._budget) for one in branches]
        for (one, its), (other, others) in combinations(zip(branches, types, strict=True), 2):
            common = its & others
            if common and not (common == {"object"} and self._differ(one, other)):
                self.fault(path, "more than one of its schemas may fit a value")

    def _differ(self, one: Any, other: Any) -> bool:
        """Whether a property that both require tells two objects apart."""
        first, second = self._check.resolve(one) or {}, self._check.resolve(other) or {}
        shared = set(_listed(first, "required")) & set(_listed(second, "required"))
        for name in shared:
            a, b = (_constants(schema.get("properties", {}).get(name)) for schema in (first, second))
            if a is not None and b is not None and not any(value in b for value in a):
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
        """What fits both; None: nothing does."""
        merged = dict(one)
        for keyword, value in other.items():
            self._budget.spend()
            before = merged.get(keyword, value)
            match keyword:
                case "type":
                    if not (kinds := _kinds(before) & _kinds(value)):
                        return None
                    merged[keyword] = [kind for kind in _TYPES if kind in kinds]
                case "properties" | "additionalProperties":
                    pass
                case "required":
                    merged[keyword] = list(dict.fromkeys([*before, *value]))
                case "enum":
                    merged[keyword] = [choice for choice in value if choice in before]
                case "items":
                    merged[keyword] = value if before == value else {"allOf": [before, value]}
                case _ if before == value:
                    merged[keyword] = value
                case _ if keyword in _LEAST:
                    merged[keyword] = max(before, value)
                case _ if keyword in _MOST:
                    merged[keyword] = min(before, value)
                case "const":
                    return None
                case _:
                    self.fault((*path, keyword), "it stands beside another one in 'allOf' or '$ref'")
        _merge_objects(merged, one, other)
        return merged


def malformed(schema: Any, error: Exception) -> tuple[Path, str]:
    """The place and the words for a schema that is none."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as fault:
        return tuple(str(step) for step in fault.absolute_path), str(fault.message)[:400]
    except Exception:  # It refers to what does not resolve.
        pass
    return (), "it is nested too deeply" if isinstance(error, RecursionError) else "it is no JSON schema"


def _merge_objects(merged: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> None:
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    if mine or theirs:
        merged["properties"] = {
            name: _of_both(_member(one, name), _member(other, name)) for name in {**mine, **theirs}
        }
    if "additionalProperties" in one or "additionalProperties" in other:
        merged["additionalProperties"] = _of_both(
            one.get("additionalProperties", True), other.get("additionalProperties", True)
        )


def _member(schema: dict[str, Any], name: str) -> Any:
    declared = schema.get("properties", {})
    return declared[name] if name in declared else schema.get("additionalProperties", True)


def _of_both(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}


def _typed(schema: dict[str, Any], path: Path) -> Iterator[Form]:
    kinds = _kinds(schema["type"]) if "type" in schema else None
    if kinds is None:
        # They say nothing about what is no object or array, but mean one.
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
    """Of the keyword `type`; unknown ones are left out."""
    kinds = frozenset(declared if isinstance(declared, list) else [str(declared)]) & JSON_TYPES
    return kinds | {"integer"} if "number" in kinds else kinds or JSON_TYPES


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    return [schema["const"]] if "const" in schema else _listed(schema, "enum") or None


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    listed = schema.get(keyword)
    return listed if isinstance(listed, list) else []
