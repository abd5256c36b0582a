"""Structured output: constraints on the text of an answer. `place` is the request field, for error
messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON that matches this schema, an object or a boolean, with the white space of a pretty-printer."""

    schema: Any
    place: str
    exact: bool = True
    """Whether a keyword that cannot be held is refused; otherwise it is ignored."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that a regular expression (of the Rust crate, without look-around) matches as a whole. Its
    classes of digits, letters and white space are ASCII only."""

    regex: str
    place: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these texts."""

    texts: tuple[str, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Rules:
    """A text that matches a grammar in Lark's syntax, or in llama.cpp's GBNF (`root ::= ...`)."""

    text: str
    place: str


Structure: TypeAlias = JsonText | Pattern | OneOf | Rules
