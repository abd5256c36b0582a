"""The rules of an answer's calls, from the notation's description and the tools' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any

from scheduler.answer.notations.description import (
    BREAK,
    NAME,
    NUMBER,
    TOOL,
    TYPE,
    Arguments,
    Braced,
    Elements,
    JsonObject,
    Keywords,
    Notation,
    Tagged,
)
from scheduler.answer.schema_check import json_types
from scheduler.grammar.lark_pattern import Unreadable, lark_pattern, regex_pattern
from scheduler.grammar.plain_schema import plain_schema
from scheduler.grammar.rule_book import NOTHING, RuleBook, one_of
from scheduler.grammar.schema_forms import CannotWrite, Form, Inexpressible, Path, SchemaForms, malformed
from scheduler.grammar.text_pattern import (
    Complaint,
    is_free,
    on_one_line,
    text_pattern,
    text_without,
    trimmed,
)
from scheduler.grammar.value_rules import BracedNotation, JsonNotation, ValueRules, gap_rule
from scheduler.request import Tool
from scheduler.structure import Pattern, Rules

MAX_CALLS = 16
"""Bound on the calls of one answer: otherwise a weak model that must call a tool would call until
max_tokens."""
MAX_FREE_PARAMETERS = 16
"""Bound on the parameters in a call of a tool that declares none and allows any."""


class CallRules:
    """Writes the rules of one notation's calls into a grammar."""

    def __init__(
        self,
        notation: Notation,
        mark: str,
        book: RuleBook,
        complaint: Complaint,
        json_arguments: Callable[[int, Tool], str],
    ) -> None:
        """`mark`: the text at which calls begin for a reader. `json_arguments`: the rule of a
        tool's arguments as one JSON object, for the tool with a number."""
        self._notation = notation
        self._mark = mark
        self._book = book
        self._complaint = complaint
        self._json_arguments = json_arguments

    def calls(self, tools: Sequence[Tool], *, several: bool) -> str:
        """Return the rule of one or more calls of any of the tools, and no text. Raise Inexpressible, with
        the tool's place as the first step of its path."""
        self._write(tools, several=several)
        before, after = self._notation.around_text
        empty_text = " ".join(_choice(self._book.literal, ("", mark)) for mark in (before, after))
        return f"{empty_text} {self._book.literal(self._mark)} marked {self._trails()}"

    def text_with_calls(self, tools: Sequence[Tool], *, several: bool) -> str:
        """Return the rule of any text with calls in it, each of them constrained from its mark on. Raise
        Inexpressible."""
        self._write(tools, several=several and bool(self._notation.opening))
        free = text_without((self._mark,))
        text, marked = self._book.terminal(free), f"{self._book.ended_by(free, self._mark)} marked"
        before, after = self._notation.around_text
        if before:
            begun, ended = (_choice(self._book.literal, ("", mark)) for mark in (before, after))
            calls = f"({self._book.literal(self._mark)} marked)?"
            return f"{begun} {text}? {ended} {calls} {self._trails()}"
        return f"({marked})* {text}?" if several else f"({marked} | {text}?)"

    def _write(self, tools: Sequence[Tool], *, several: bool) -> None:
        """Add the rule `marked`: the calls, without the mark with which they begin."""
        notation, literal = self._notation, self._book.literal
        for number, tool in enumerate(tools):
            self._book.add(f"call_{number}: {self._call(number, tool)}")
        self._book.add("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        more, again = "", "" if notation.opening else literal(self._mark)
        if several and notation.parallel:
            more = f"({_choice(literal, notation.separators)} {again} call){{0,{MAX_CALLS - 1}}}"
        opening = literal(notation.opening.removeprefix(self._mark))
        self._book.add(f"marked: {opening} call {more} {literal(notation.closing)}")

    def _trails(self) -> str:
        """Return what may stand after the last call. Where a newline separates calls, a model that is not
        used to calls ends its lines with one too, or with two. If a newline could only be followed by another
        call, the model would have to make one: SmolLM2-135M then called until MAX_CALLS."""
        newline = "\n" in self._notation.separators
        ends = ("", "\n", "\n\n") if newline else ("",)
        return _choice(self._book.literal, [trail + end for trail in self._notation.trails for end in ends])

    def _call(self, number: int, tool: Tool) -> str:
        try:
            in_python = isinstance(self._notation.arguments, Keywords)
            is_keyword = in_python and any(map(iskeyword, tool.name.split(".")))
            if is_keyword or re.fullmatch(self._notation.names, tool.name) is None:
                raise CannotWrite((), f"the notation cannot write a call of a tool named {tool.name!r}")
            body = self._arguments(number, tool if tool.text is None else _held_to_text(tool, tool.text))
        except Inexpressible as fault:
            if tool.text is not None:
                # The schema is the server's own.
                raise Inexpressible((tool.place,), fault.why) from None
            raise Inexpressible((tool.place, *fault.path), fault.why) from None
        quotes = isinstance(self._notation.arguments, JsonObject) and f'"{TOOL}"' in self._notation.head
        name = json.dumps(tool.name, ensure_ascii=False)[1:-1] if quotes else tool.name
        written = (self._notation.call_start + self._notation.head).replace(TOOL, name)
        head = self._with_number(written if self._notation.opening else written.removeprefix(self._mark))
        return f"{head} {body} {self._book.literal(self._notation.tail + self._notation.call_end)}"

    def _with_number(self, head: str) -> str:
        before, numbered, after = head.partition(NUMBER)
        if not numbered:
            return self._book.literal(head)
        return (
            f"{self._book.literal(before)} {self._book.terminal('/[0-9]{1,2}/')} {self._book.literal(after)}"
        )

    def _arguments(self, number: int, tool: Tool) -> str:
        form = self._notation.arguments
        if not isinstance(form, JsonObject):
            return self._by_forms(form, tool, strict=tool.strict)
        try:
            return self._by_forms(form, tool, strict=True)
        except Inexpressible:
            if tool.text is not None:
                raise
            # The library knows more of JSON schema, and nothing of the mark that ends a call.
            return self._json_arguments(number, tool)

    def _by_forms(self, form: Arguments, tool: Tool, *, strict: bool) -> str:
        schema = {"type": "object", **tool.parameters}
        try:
            plain = plain_schema(schema)
            return self._of_schema(
                form, SchemaForms(plain.exact() if strict else plain.schema, strict=strict)
            )
        except Inexpressible:
            if strict:
                raise
        except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
            # A client's schema may be anything.
            if strict:
                raise Inexpressible(*malformed(schema, error)) from None
        # Nobody promised more than a call.
        return self._of_schema(form, SchemaForms(_only_names(schema), strict=False))

    def _of_schema(self, form: Arguments, forms: SchemaForms) -> str:
        objects = [one for one in forms.of(forms.root, ()) if one.kind == "object"]
        written, faults = [], []
        for one in objects:
            try:
                written.append(self._object(form, forms, one))
            except Inexpressible as fault:
                faults.append(fault)
        if not written:
            raise faults[0] if faults else Inexpressible((), "no arguments fit it")
        return one_of(written)

    def _object(self, form: Arguments, forms: SchemaForms, one: Form) -> str:
        match form:
            case Tagged():
                return _TaggedRules(self._book, self._notation, form, forms, self._complaint).parameters(one)
            case Braced():
                ends = self._notation.ends
                braced = BracedNotation(self._book, form, ends, self._complaint, forms.strict)
                values = ValueRules(self._book, forms, braced, self._complaint)
                return f'"{{" {values.listed(one, braced.key)} "}}"'
            case Keywords():
                return self._keywords(form, forms, one)
            case Elements():
                raise CannotWrite((), "the notation is not held")
            case JsonObject():
                notation = self._json_notation(forms)
                return ValueRules(self._book, forms, notation, self._complaint).form(one)

    def _json_notation(self, forms: SchemaForms) -> JsonNotation:
        return JsonNotation(self._book, (), self._complaint, gap_rule(self._book, forms.root), forms.strict)

    def _keywords(self, form: Keywords, forms: SchemaForms, one: Form) -> str:
        values = ValueRules(self._book, forms, self._json_notation(forms), self._complaint)

        def key(name: str) -> str | None:
            allowed = re.fullmatch(self._notation.names, name) and name.isascii() and not iskeyword(name)
            return self._book.literal(f"{name}=") if allowed else None

        return values.listed(one, key, ", ")


class _TaggedRules:
    """The parameters of one tool between tags."""

    def __init__(
        self, book: RuleBook, notation: Notation, form: Tagged, forms: SchemaForms, complaint: Complaint
    ) -> None:
        self._book = book
        self._notation = notation
        self._form = form
        self._forms = forms
        self._complaint = complaint
        in_json = JsonNotation(book, notation.ends, complaint, gap_rule(book, forms.root), forms.strict)
        self._values = ValueRules(book, forms, in_json, complaint)

    def parameters(self, one: Form) -> str:
        members = self._values.members(one)
        if not members:
            return self._free_parameters(one)
        rules = []
        for name, schema, required in members:
            path = (*one.path, "properties", name)
            try:
                rule = self._book.rule(f"{self._breaks()} {self._parameter(name, schema, path)}")
            except Inexpressible as fault:
                if required or (self._forms.strict and not isinstance(fault, CannotWrite)):
                    raise
                continue
            rules.append(rule if required else f"{rule}?")
        if not rules:
            return self._breaks() or NOTHING
        return " ".join([*rules, self._breaks()])

    def _parameter(self, name: str, schema: Any, path: Path) -> str:
        if re.fullmatch(self._notation.names, name) is None:
            raise CannotWrite(path, f"the notation cannot write a parameter named {name!r}")
        forms = self._forms.of(schema, path)
        texts = [one for one in forms if one.kind == "string"]
        others = [one for one in forms if one.kind != "string"]
        has_null = False
        if texts and not self._form.json_opening:
            # Of terminals the longest wins, so a text swallows the word null: it is one of the texts.
            has_null = any(one.kind == "null" for one in others)
            others = [one for one in others if one.kind != "null"]
            if any(map(is_free, texts)):
                # All other JSON is a text, too, and read as what it is.
                texts, others = [one for one in texts if is_free(one)][:1], []
        written, faults = list[str](), list[Inexpressible]()
        for one in texts:
            try:
                text = self._text(one, has_null=has_null)
                written.append(f"{self._opening(self._form.opening, name)} {text}")
            except Inexpressible as fault:
                faults.append(fault)
        if others:
            try:
                written += self._json(name, others, schema, path)
            except Inexpressible as fault:
                faults.append(fault)
        for found in faults:
            if not written or (self._forms.strict and not isinstance(found, CannotWrite)):
                raise found
        if not written:
            raise CannotWrite(path, "no value fits it")
        return one_of(written)

    def _json(self, name: str, others: Sequence[Form], schema: Any, path: Path) -> list[str]:
        closing = self._book.literal(self._form.closing)
        if not self._form.json_opening:
            rule = self._values.rule_of(others, f"json of {json.dumps(schema)}", path)
            return [f"{self._opening(self._form.opening, name)} {rule} {closing}"]
        written = []
        for kind in dict.fromkeys(one.kind for one in others):
            some = [one for one in others if one.kind == kind]
            rule = self._values.rule_of(some, f"{kind} of {json.dumps(schema)}", path)
            spelled = "number" if kind == "integer" else kind
            opening = self._opening(self._form.json_opening.replace(TYPE, spelled), name)
            written.append(f"{opening} {rule} {closing}")
        return written

    def _text(self, one: Form, *, has_null: bool = False) -> str:
        form = self._form
        pattern = text_pattern(one, self._notation.ends, self._complaint, strict=self._forms.strict)
        bare = pattern if form.quoted is None else trimmed(on_one_line(pattern, form.quoted_for))
        ended = self._book.ended_by(f'({bare}) | "null"' if has_null else bare, form.closing)
        if form.quoted is None:
            return ended
        start, end = form.quoted
        quoted = f"{self._book.literal(start)} {self._book.ended_by(pattern, end + form.closing)}"
        return f"({ended} | {quoted})"

    def _free_parameters(self, one: Form) -> str:
        """Return the rule for a tool that declares no parameters: any, if it allows any."""
        others = one.schema.get("additionalProperties", True)
        if others is False:
            return self._breaks() or NOTHING
        path = (*one.path, "additionalProperties")
        if "string" not in json_types(others, self._forms.root):
            self._forms.fault(path, "parameters without declared names can only be strings in this notation")
            return self._breaks() or NOTHING
        texts = [form for form in self._forms.of(others, path) if form.kind == "string"]
        before, after = self._form.opening.split(NAME)
        name = self._book.terminal(r"/[A-Za-z_][A-Za-z0-9_]{0,63}/")
        opening = f"{self._book.literal(before)} {name} {self._broken(after)}"
        value = one_of(self._text(form) for form in texts)
        parameter = self._book.rule(f"{self._breaks()} {opening} {value}")
        return f"{parameter}{{0,{MAX_FREE_PARAMETERS}}} {self._breaks()}"

    def _opening(self, opening: str, name: str) -> str:
        return self._broken(opening.replace(NAME, name))

    def _broken(self, text: str) -> str:
        """Return the text with each BREAK as one of the notation's breaks."""
        return f" {self._breaks()} ".join(map(self._book.literal, text.split(BREAK)))

    def _breaks(self) -> str:
        return _choice(self._book.literal, self._form.breaks)


def _only_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema to use in place of one that cannot be held: parameters of the same names, with any
    value."""
    properties = schema.get("properties")
    return {"properties": dict.fromkeys(properties, True) if isinstance(properties, dict) else {}}


def _choice(literal: Callable[[str], str], texts: Sequence[str]) -> str:
    """Return the rule of one of these texts; an empty one makes the rest optional."""
    written = [literal(text) for text in texts if text]
    if not written:
        return ""
    return f"({' | '.join(written)})" + ("?" if "" in texts else "")


def _held_to_text(tool: Tool, asked: Pattern | Rules) -> Tool:
    """Return the tool with the pattern of its text in its schema, which the prompt has not. Raise
    Inexpressible."""
    try:
        pattern = regex_pattern(asked.regex) if isinstance(asked, Pattern) else lark_pattern(asked.text)
    except Unreadable as why:
        raise Inexpressible((), str(why)) from None
    text = {"type": "string", "pattern": f"^(?:{pattern})$"}
    schema = {"properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    return replace(tool, parameters=schema, strict=True)
