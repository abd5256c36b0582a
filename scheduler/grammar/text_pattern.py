"""Terminals of bare text: any text up to a mark that a string's schema allows.

No text can contain what would end it, whatever the schema allows: the notation cannot carry that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llguidance import regex_to_lark

from scheduler.grammar.schema_forms import CannotWrite, Form, Inexpressible
from scheduler.grammar.vocabulary import quoted

Complaint: TypeAlias = Callable[[dict[str, Any]], str | None]
"""The error of one part of a grammar."""
_ANY = "(?s:.*)"
_BLANK = r"[\s\x1c-\x1f]"
"""White space in Python, which strips more than a regular expression's `\\s`."""
_SPECIAL = frozenset("\\.+*?()|[]{}^$#&-~/")
_ASCII = "dws"
FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
}
FORMATS["date-time"] = f"{FORMATS['date']}T{FORMATS['time']}"
"""Other formats name what a text means, not which texts there are: they are not enforced."""


def escaped(text: str) -> str:
    """Return `text` as it is written in a regular expression between slashes."""
    return "".join(
        f"\\{letter}" if letter in _SPECIAL else f"\\x{ord(letter):02x}" if letter < " " else letter
        for letter in text
    )


def text_without(ends: Sequence[str]) -> str:
    """Return a pattern of any text without `ends`, and without special tokens: a complement alone would also
    match their bytes."""
    return f"/{_ANY}/ & {without(ends)}"


def without(ends: Sequence[str]) -> str:
    """Return the conjunct that none of `ends` occurs."""
    return f"~/{_ANY}({'|'.join(map(escaped, ends))}){_ANY}/" if ends else f"/{_ANY}/"


def lacking(end: str) -> str:
    """Return a JSON schema's pattern of the texts in which `end` does not occur. Such patterns have no
    complement, so it is spelled out, up to where the mark's first character occurs in it again."""
    again = end.find(end[0], 1)
    first, *others = map(escaped, end if again < 0 else end[:again])
    rest = ""
    for letter in reversed(others):
        rest = (
            f"([^{first}{letter}][^{first}]*|{letter}{rest})?"
            if rest
            else f"([^{first}{letter}][^{first}]*)?"
        )
    return f"^[^{first}]*({first}{rest})*$" if others else f"^[^{first}]*$"


def text_pattern(form: Form, ends: Sequence[str], complaint: Complaint, *, strict: bool) -> str:
    """Return the pattern of the strings of `form` that contain none of `ends`.

    Raise Inexpressible if there are none, or if a pattern cannot be used and `strict` forbids to ignore it.
    """
    schema, conjuncts = form.schema, [without(ends)]
    if (choices := form.choices) is not None:
        carried = [text for text in choices if not any(end in text for end in ends)]
        if not carried:
            raise CannotWrite(form.path, "the notation cannot write any of its values")
        conjuncts.append("(" + " | ".join(map(quoted, carried)) + ")")
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        conjuncts.append(f"/(?s:.{{{int(least)},{'' if most is None else int(most)}}})/")
    if (asked := schema.get("pattern")) is not None:
        pattern = f"/{_searched(str(asked))}/"
        part = {"lark_grammar": f"start: T\nT: {pattern}\n"}
        why = complaint(part) if _has_plain_anchors(str(asked)) else "its anchors cannot be used here"
        if why is None:
            conjuncts.append(pattern)
        elif strict:
            raise Inexpressible((*form.path, "pattern"), why)
    if (name := schema.get("format")) in FORMATS:
        conjuncts.append(f"/{FORMATS[str(name)]}/")
    return " & ".join([f"/{_ANY}/", *conjuncts])


def trimmed(pattern: str) -> str:
    """Return a pattern of text without white space at its ends."""
    return f"{pattern} & ~/{_BLANK}{_ANY}/ & ~/{_ANY}{_BLANK}/"


def on_one_line(pattern: str, marks: str) -> str:
    """Return a pattern of text without line breaks and `marks`."""
    return f"{pattern} & /[^\\n\\r{escaped(marks)}]*/"


def is_free(form: Form) -> bool:
    """Return whether any text fits it."""
    return form.kind == "string" and not form.schema.keys() & {
        "enum", "const", "pattern", "minLength", "maxLength"
    } and form.schema.get("format") not in FORMATS  # fmt: skip


def _searched(pattern: str) -> str:
    """Return the pattern of whole texts: JSON schema searches for a pattern anywhere in a text."""
    start, end = pattern.startswith("^"), _ends_anchored(pattern)
    inner = pattern[int(start) : len(pattern) - int(end)]
    body = regex_to_lark(f"(?:{inner})", _ASCII)
    return ("" if start else _ANY) + body + ("" if end else _ANY)


def _ends_anchored(pattern: str) -> bool:
    if not pattern.endswith("$"):
        return False
    before = pattern[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _has_plain_anchors(pattern: str) -> bool:
    """Return whether anchors stand only at its ends, and hold for all of it."""
    anchored = pattern.startswith("^") or _ends_anchored(pattern)
    depth, in_class, skip = 0, False, False
    last = len(pattern) - 1
    for place, letter in enumerate(pattern):
        if skip:
            skip = False
        elif letter == "\\":
            skip = True
        elif in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif (letter == "|" and depth == 0 and anchored) or (
            letter in "^$" and not (letter == "^" and place == 0) and not (letter == "$" and place == last)
        ):
            return False
    return True


def length_bounds(schema: dict[str, Any]) -> str:
    """Return the quantifier for a string's characters."""
    most = schema.get("maxLength")
    least = int(schema.get("minLength", 0))
    return "*" if not least and most is None else f"{{{least},{'' if most is None else int(most)}}}"
