"""What a client can ask the text of an answer to be. `place` is where it said so, in its own dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON of this schema, which is an object or a truth value."""

    schema: Any
    place: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that a regular expression (the Rust crate's, without look-around) matches as a whole. Its
    classes of digits, letters and white space are ASCII's."""

    regex: str
    place: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these texts."""

    texts: tuple[str, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Rules:
    """A text of a grammar in Lark's syntax, or in llama.cpp's GBNF (`root ::= ...`)."""

    text: str
    place: str


Structure: TypeAlias = JsonText | Pattern | OneOf | Rules
