"""Rules of values that stand inside a call: in JSON, or in the braces of Gemma."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scheduler.answer.notations.description import Braced
from scheduler.grammar.rule_book import NOTHING, RuleBook, one_of
from scheduler.grammar.schema_forms import CannotWrite, Form, Inexpressible, Path, SchemaForms
from scheduler.grammar.text_pattern import Complaint, lacking, length_bounds, text_pattern, without
from scheduler.grammar.vocabulary import quoted
from scheduler.grammar.white_space import json_options

_LETTER = r'([^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f])'
_NUMBER = r"/-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?/"
_INTEGER = r"/-?(0|[1-9][0-9]{0,19})/"
"""Without bounds, models and random walks write digits without end, and `1e999` is no JSON number in
Python."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class Notation(Protocol):
    """How values are spelled."""

    name: str
    gap: str
    """A rule for what may stand after a bracket, a colon or a comma."""

    @property
    def nests(self) -> bool: ...
    @property
    def is_sorted(self) -> bool: ...

    def key(self, name: str) -> str | None:
        """Return the rule of a member's name and its colon, or None if it cannot be written."""
        ...

    def any_key(self) -> str: ...

    def string(self, form: Form) -> str:
        """Raise Inexpressible."""
        ...

    def constant(self, value: Any) -> str | None:
        """Return the rule of one value, or None if it cannot be written."""
        ...


@dataclass(slots=True)
class JsonNotation:
    """JSON in which no string contains what ends the call."""

    book: RuleBook
    ends: Sequence[str]
    complaint: Complaint
    gap: str
    strict: bool
    """Whether a pattern that cannot be used is a fault; otherwise it is ignored."""
    name: str = "json"
    nests: bool = True
    is_sorted: bool = False

    def key(self, name: str) -> str | None:
        written = self.constant(name)
        return None if written is None else f'{written} ":" {self.gap}'

    def any_key(self) -> str:
        return f'{self._text("*")} ":" {self.gap}'

    def string(self, form: Form) -> str:
        schema = form.schema
        if "pattern" not in schema and "format" not in schema:
            return self._text(length_bounds(schema))
        inner = {"type": "string", **schema, "allOf": [{"pattern": lacking(end)} for end in self.ends]}
        if (why := self.complaint({"json_schema": inner})) is not None:
            if "pattern" in schema and self.strict:
                raise Inexpressible((*form.path, "pattern"), why)
            return self._text(length_bounds(schema))
        return self.book.rule(f"%json {json.dumps(inner, ensure_ascii=False)}")

    def constant(self, value: Any) -> str | None:
        text = json.dumps(value, ensure_ascii=False)
        return None if any(end in text for end in self.ends) else quoted(text)

    def _text(self, bounds: str) -> str:
        return self.book.terminal(f'/"{_LETTER}{bounds}"/ & {without(self.ends)}')


@dataclass(slots=True)
class BracedNotation:
    """Gemma's notation: names without quotes, strings between marks, no white space."""

    book: RuleBook
    form: Braced
    ends: Sequence[str]
    complaint: Complaint
    strict: bool
    gap: str = NOTHING
    name: str = "braced"
    is_sorted: bool = True

    @property
    def nests(self) -> bool:
        return self.form.nests

    def key(self, name: str) -> str | None:
        return quoted(f"{name}:") if re.fullmatch(self.form.names, name) else None

    def any_key(self) -> str:
        return self.book.terminal(r"/[A-Za-z_][A-Za-z0-9_]{0,40}:/")

    def string(self, form: Form) -> str:
        pattern = text_pattern(form, self.ends, self.complaint, strict=self.strict)
        return (
            f"{self.book.literal(self.form.string_mark)} {self.book.ended_by(pattern, self.form.string_mark)}"
        )

    def constant(self, value: Any) -> str | None:
        match value:
            case str():
                return None if any(end in value for end in self.ends) else self._marked(value)
            case dict():
                members = [(self.key(name), self.constant(item)) for name, item in value.items()]
                if any(key is None or item is None for key, item in members):
                    return None
                return self._listed("{", [f"{key} {item}" for key, item in members], "}")
            case list():
                items = [self.constant(item) for item in value]
                return None if None in items else self._listed("[", [str(item) for item in items], "]")
            case _:
                return quoted(json.dumps(value))

    def _marked(self, text: str) -> str:
        return self.book.literal(f"{self.form.string_mark}{text}{self.form.string_mark}")

    def _listed(self, start: str, written: list[str], end: str) -> str:
        return " ".join([quoted(start), ' "," '.join(written), quoted(end)])


class ValueRules:
    """The rules of one tool's values in one notation."""

    def __init__(self, book: RuleBook, forms: SchemaForms, notation: Notation, complaint: Complaint) -> None:
        self._book = book
        self._forms = forms
        self._notation = notation
        self._complaint = complaint
        root = json.dumps(forms.root, sort_keys=True, default=str)
        self._root = root if '"$ref"' in root else ""

    def value(self, schema: Any, path: Path) -> str:
        """Return the rule of all values that fit. Raise Inexpressible."""
        return self.rule_of(self._forms.of(schema, path), json.dumps(schema), path)

    def rule_of(self, forms: Sequence[Form], name: str, path: Path) -> str:
        """Return the rule of `forms`; `name` separates it from others of this tool."""
        key = "\0".join((self._notation.name, self._notation.gap, str(self._forms.strict), self._root, name))
        return self._book.recursive(key, lambda: self._alternatives(forms, path))

    def members(self, form: Form) -> list[tuple[str, Any, bool]]:
        """Return an object's declared members in the order in which they are written: name, schema, whether
        it must be there."""
        schema = form.schema
        properties = schema.get("properties", {})
        required = [name for name in schema.get("required", []) if isinstance(name, str)]
        others = schema.get("additionalProperties", True)
        declared = {**properties, **{name: others for name in required if name not in properties}}
        names = list(declared)
        if self._notation.is_sorted:
            names.sort(key=str.lower)
        return [(name, declared[name], name in required) for name in names]

    def form(self, form: Form) -> str:
        """Raise Inexpressible."""
        if form.kind in ("array", "object") and not self._notation.nests:
            raise CannotWrite(form.path, f"the notation cannot write a value of type {form.kind!r}")
        if (choices := form.choices) is not None:
            written = [self._notation.constant(value) for value in choices]
            if not (carried := [rule for rule in written if rule is not None]):
                raise CannotWrite(form.path, "the notation cannot write any of its values")
            return one_of(carried)
        match form.kind:
            case "string":
                return self._notation.string(form)
            case "number" | "integer":
                return self._number(form)
            case "boolean":
                return '("true" | "false")'
            case "null":
                return '"null"'
            case "array":
                return self._array(form)
            case _:
                return self._object(form)

    def _alternatives(self, forms: Sequence[Form], path: Path) -> str:
        written, faults = [], []
        for form in forms:
            try:
                written.append(self.form(form))
            except Inexpressible as fault:
                faults.append(fault)
        if not written:
            raise faults[0] if faults else CannotWrite(path, "no value fits it")
        return one_of(written)

    def _number(self, form: Form) -> str:
        asked = {name: form.schema[name] for name in _BOUNDS if name in form.schema}
        if not asked:
            return self._book.terminal(_INTEGER if form.kind == "integer" else _NUMBER)
        inner = {"type": form.kind, **asked}
        if (why := self._complaint({"json_schema": inner})) is not None:
            raise Inexpressible(form.path, why)
        return self._book.rule(f"%json {json.dumps(inner)}")

    def _array(self, form: Form) -> str:
        schema, gap = form.schema, self._notation.gap
        places = schema.get("prefixItems")
        prefix = places if isinstance(places, list) else []
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if prefix:
            # Write all named items, though the schema would also allow more, or fewer down to `minItems`.
            length = len(prefix) if most is None else min(len(prefix), int(most))
            if least > length:
                self._forms.fault((*form.path, "minItems"), "it needs more items than 'prefixItems' names")
            items = [
                self.value(one, (*form.path, "prefixItems", str(i))) for i, one in enumerate(prefix[:length])
            ]
            between = f' "," {gap} '
            return f'"[" {gap} {between.join(items)} {gap} "]"'
        empty = f'"[" {gap} "]"'
        if schema.get("items") is False or most == 0:
            return empty
        try:
            item = self.value(schema.get("items", True), (*form.path, "items"))
        except Inexpressible:
            if least:
                raise
            self._forms.fault((*form.path, "items"), "the notation cannot write them")
            return empty
        more = f"{{{max(least - 1, 0)},{'' if most is None else int(most) - 1}}}"
        some = f'"[" {gap} {item} ("," {gap} {item}){more} {gap} "]"'
        return some if least else f"({empty} | {some})"

    def _object(self, form: Form) -> str:
        gap = self._notation.gap
        if not self.members(form):
            return self._open_object(form)
        return f'"{{" {gap} {self.listed(form, self._notation.key)} {gap} "}}"'

    def listed(self, form: Form, key_of: Callable[[str], str | None], comma: str = ",") -> str:
        """Return the rule of an object's declared members, without its braces. `key_of` is like
        `Notation.key`."""
        rules: list[tuple[str, bool]] = []
        for name, schema, required in self.members(form):
            path = (*form.path, "properties", name)
            try:
                key = key_of(name)
                if key is None:
                    raise CannotWrite(path, f"the notation cannot write the name {name!r}")
                rules.append((f"{key} {self.value(schema, path)}", required))
            except Inexpressible as fault:
                if required or (self._forms.strict and not isinstance(fault, CannotWrite)):
                    raise
        return self._in_order(rules, f"{quoted(comma)} {self._notation.gap if comma == ',' else ''}")

    def _in_order(self, rules: Sequence[tuple[str, bool]], comma: str) -> str:
        """Return the rule of members in this order with commas between them; those that are not required may
        be left out."""
        first, more = NOTHING, NOTHING
        is_last = True
        for rule, required in reversed(rules):
            member = self._book.rule(rule)
            begun = member if is_last else f"{member} {more}"
            follows = f"{comma} {begun}"
            first = self._book.rule(begun if required else f"{begun} | {first}")
            more = self._book.rule(follows if required else f"{follows} | {more}")
            is_last = False
        return first

    def _open_object(self, form: Form) -> str:
        gap, others = self._notation.gap, form.schema.get("additionalProperties", True)
        empty = f'"{{" {gap} "}}"'
        if others is False:
            return empty
        try:
            member = f"{self._notation.any_key()} {self.value(others, (*form.path, 'additionalProperties'))}"
        except Inexpressible:
            return empty
        return f'({empty} | "{{" {gap} {member} ("," {gap} {member})* {gap} "}}")'


def gap_rule(book: RuleBook, schema: Any) -> str:
    """Return the rule of what a pretty-printer writes between JSON tokens."""
    return f"{book.terminal('/' + json_options(schema)['whitespace_pattern'] + '/')}?"
