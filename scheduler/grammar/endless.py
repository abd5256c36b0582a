"""The place where a schema refers to itself without an end: no finite value fits there.

A → B → A says nothing; a node that requires a node goes on for ever. The grammar library finds neither before
an answer reaches it, and the answer then fails, or never ends.
"""

from __future__ import annotations

from typing import Any

from scheduler.answer.schema_check import StepBudget, StepsExhausted
from scheduler.grammar.plain_schema import References, says_never

_MOST_STEPS = 200_000
Path = tuple[str, ...]


def endless_reference(root: Any) -> Path | None:
    """Return the path of a reference that can be reached and leads back to itself whatever is chosen, or
    None."""
    search = _Search(root)
    try:
        search.enter(root)
        while sum(map(search.judge, reversed(search.order))):
            pass
    except (StepsExhausted, TypeError):
        # It is too large to say, or no JSON schema.
        return None
    return next((path for path, schema in search.closing if not search.ends(schema)), None)


class _Search:
    """Each schema that an answer may reach, and whether some value ends there: the least solution, found by
    rounds."""

    def __init__(self, root: Any) -> None:
        self._references = References(root)
        self._budget = StepBudget(_MOST_STEPS)
        self._finite: dict[int, bool] = {}
        self.order: list[dict[str, Any]] = []
        self.closing: list[tuple[Path, dict[str, Any]]] = []
        """Path and schema of each reference to what was being entered."""
        self._entering: set[int] = set()

    def enter(self, schema: Any) -> None:
        # Not recursive: references make chains that are longer than Python's stack.
        todo: list[tuple[Any, Path, bool]] = [(schema, (), False)]
        while todo:
            one, at, is_left = todo.pop()
            self._budget.spend()
            if is_left:
                self._entering.discard(id(one))
                continue
            if not isinstance(one, dict) or id(one) in self._finite:
                if id(one) in self._entering:
                    self.closing.append((at, one))
                continue
            self._finite[id(one)] = False
            self.order.append(one)
            self._entering.add(id(one))
            todo.append((one, at, True))
            for step, inner in _reached(one):
                todo.append((inner, (*at, *step), False))
            if "$ref" in one and (found := self._references.target(one["$ref"])) is not None:
                target_path, target = found
                if id(target) in self._entering:
                    self.closing.append(((*at, "$ref"), one))
                else:
                    todo.append((target, target_path, False))

    def ends(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return not says_never(schema)
        return self._finite.get(id(schema), True)

    def judge(self, schema: dict[str, Any]) -> bool:
        """Judge one schema by what is known. Return whether that is new."""
        self._budget.spend()
        if self._finite[id(schema)] or not self._is_finite(schema):
            return False
        self._finite[id(schema)] = True
        return True

    def _is_finite(self, schema: dict[str, Any]) -> bool:
        if "$ref" in schema:
            found = self._references.target(schema["$ref"])
            if found is not None and not self.ends(found[1]):
                return False
        if not all(map(self.ends, _listed(schema, "allOf"))):
            return False
        if any(
            not any(map(self.ends, some))
            for keyword in ("anyOf", "oneOf")
            if (some := _listed(schema, keyword))
        ):
            return False
        if "enum" in schema or "const" in schema:
            return True
        kinds = schema.get("type")
        match kinds if not isinstance(kinds, list) or len(kinds) != 1 else kinds[0]:
            case "object":
                declared = schema.get("properties")
                named = declared if isinstance(declared, dict) else {}
                others = (
                    schema.get("additionalProperties", True) if "patternProperties" not in schema else True
                )
                return all(self.ends(named.get(name, others)) for name in _listed(schema, "required"))
            case "array":
                least, places = schema.get("minItems", 0), _listed(schema, "prefixItems")
                if not isinstance(least, int):
                    return True
                rest = schema.get("items", True)
                return all(map(self.ends, places[:least])) and (least <= len(places) or self.ends(rest))
            case _:
                return True


def _reached(schema: dict[str, Any]) -> list[tuple[Path, Any]]:
    """Return the direct subschemas that an answer may reach. What they name is by the library's rules."""
    found: list[tuple[Path, Any]] = []
    for keyword in ("properties", "patternProperties"):
        if isinstance(named := schema.get(keyword), dict):
            found += (((keyword, name), one) for name, one in named.items())
    for keyword in ("prefixItems", "items", "allOf", "anyOf", "oneOf"):
        found += (((keyword, str(place)), one) for place, one in enumerate(_listed(schema, keyword)))
    for keyword in ("items", "additionalProperties"):
        if isinstance(one := schema.get(keyword), dict):
            found.append(((keyword,), one))
    return found


def _listed(schema: dict[str, Any], keyword: str) -> list[Any]:
    inside = schema.get(keyword)
    return inside if isinstance(inside, list) else []
