"""What a notation of tool calls looks like, as data: what holds a model to it and what reads it are both made
from this.

An answer's calls are `opening`, one or more calls with one of `separators` between them, `closing`. A call is
`head`, its arguments, `tail`. All texts are what the model's own template writes for an earlier call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

TOOL, NUMBER = "{tool}", "{number}"
"""Placeholders in a head for the tool's name and for the call's number, which the model counts."""
NAME, TYPE, BREAK = "{name}", "{type}", "{break}"
"""In a parameter's opening for its name, the JSON type of its value, one of its notation's breaks."""


class Layout(Enum):
    MARKS = auto()
    MUSE_SPARK = auto()
    HARMONY = auto()


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The arguments are one JSON object."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """Each parameter stands between tags, its name in the first of them. A string is the bare text between
    them, any other value is JSON."""

    opening: str
    """The opening tag, with NAME and, in some, BREAK. What the template writes between tag and value is part
    of it, and no part of the value."""
    closing: str
    json_opening: str = ""
    """What opens a value that is no string, where it differs: it says which of both a value is. It has NAME
    and, in some, TYPE."""
    has_json: bool = False
    """Whether a string is written in JSON, too."""
    in_json: tuple[str, str] = ("", "")
    """What the model writes around all arguments where they are one JSON object."""
    breaks: tuple[str, ...] = ("",)
    """What the model may write before an opening and before the tail."""
    quoted: tuple[str, str] | None = None
    """The marks around a text that has white space at its ends, a line break or one of `quoted_for`."""
    quoted_for: str = ""


@dataclass(frozen=True, slots=True)
class Braced:
    """`{name:value,...}`, with a mark at both ends of a string and no escapes in it. Members are sorted by
    name, without regard to case: Jinja's `dictsort`."""

    string_mark: str
    nests: bool = True
    """Whether values can be objects and arrays."""
    names: str = r"[\w$][\w$.-]*"
    """A regular expression of the names that a parameter can have: no tool's with a colon."""


@dataclass(frozen=True, slots=True)
class Keywords:
    """`name=value, ...`, the arguments of a Python call. Values are JSON, which is Python but for `true`,
    `false` and `null`; the parser takes those, too."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Each parameter is an element, nested ones for objects and arrays, with a mark before each tag."""

    mark: str


Arguments: TypeAlias = JsonObject | Tagged | Braced | Keywords | Elements


@dataclass(frozen=True, slots=True)
class Notation:
    """One syntax of calls: `opening`, calls, `closing`. A call is `call_start`, `head`, arguments, `tail`,
    `call_end`."""

    name: str
    head: str
    """The head of a call, with TOOL and, in some, NUMBER."""
    arguments: Arguments = JsonObject()
    tail: str = ""
    opening: str = ""
    call_start: str = ""
    """What the model writes before each head. Neither it nor `call_end` names anything: a model may leave out
    both."""
    call_end: str = ""
    separators: tuple[str, ...] = ("",)
    closing: str = ""
    parallel: bool = True
    """Whether an answer can have several calls."""
    around_text: tuple[str, str] = ("", "")
    """What the model writes around the answer's text, which comes before its calls."""
    trails: tuple[str, ...] = ("",)
    """What it may write after `closing`: one of these."""
    names: str = r"(?s:.+)"
    """A regular expression of the names that a tool or a parameter can have."""
    openings: tuple[str, ...] = ()
    """What a model also writes to begin calls."""
    strays: tuple[str, ...] = ()
    """What it also writes between and behind them, which means nothing."""
    bare: bool = False
    """Whether an answer may begin with a call without any mark."""
    id_mark: str = ""
    """What stands between a tool's name and the call's id, where a model writes one."""
    also: tuple[Notation, ...] = ()
    """Other notations in which the model writes calls, between the same marks or by their heads alone."""
    short_ids: bool = False
    """Mistral's templates accept only ids of nine letters and digits."""
    result_mark: str = ""
    """The start of a tool's result. A model that does not stop after its calls continues with this: the
    answer ends before it."""
    signs: tuple[tuple[str, ...], ...] = ()
    """What a template has all of that writes or asks for it; by default `start`."""

    @property
    def start(self) -> str:
        """Return the text at which calls begin for a reader."""
        return self.opening_mark or self.opening or self.call_start.rstrip() or self.prefix

    @property
    def end(self) -> str:
        """Return the text at which they end; empty if there is none."""
        return self.closing_mark if self.opening else self.call_end.strip()

    @property
    def opening_mark(self) -> str:
        """Return `opening` without white space and the bracket of a list."""
        return self.opening.strip().removesuffix("[" if self._is_list else "").strip()

    @property
    def closing_mark(self) -> str:
        return self.closing.strip().removeprefix("]" if self._is_list else "").strip()

    @property
    def _is_list(self) -> bool:
        return self.opening.rstrip().endswith("[") and self.closing.lstrip().startswith("]")

    @property
    def ends(self) -> tuple[str, ...]:
        """Return what no text in its arguments can contain, unless it stands in quotes: a reader would end
        the text there."""
        match self.arguments:
            case Tagged(closing=closing, quoted=quoted, in_json=in_json):
                marks = (
                    closing,
                    self.call_end or self.tail,
                    self.closing_mark,
                    in_json[1],
                    (quoted or ("", ""))[1],
                )
                return tuple(filter(None, map(str.strip, marks)))
            case Braced(string_mark=mark):
                return (mark, self.call_end)
            case _:
                return ()

    @property
    def prefix(self) -> str:
        """Return what stands before a tool's name."""
        return self.head.split(TOOL)[0].strip().rstrip("\"'")

    @property
    def is_json(self) -> bool:
        """Return whether a call is one JSON object, with the tool's name in it."""
        return self.head.startswith('{"')

    @property
    def control(self) -> tuple[str, ...]:
        """Return its marks, of which control tokens may be parts."""
        tail = self.tail.strip().strip("})")
        own = (self.start, self.end, self.call_start.strip(), self.call_end.strip(), self.head, tail)
        match self.arguments:
            case Braced(string_mark=mark) | Elements(mark=mark):
                inside: tuple[str, ...] = (mark,)
            case Tagged(opening=opening, closing=closing, in_json=in_json):
                inside = (opening, closing, *in_json)
            case JsonObject() | Keywords():
                inside = ()
        return tuple(mark for mark in (*own, *inside, *self.openings, *self.strays, self.id_mark) if mark)


@dataclass(frozen=True, slots=True)
class Unheld:
    """A notation that a grammar cannot hold, and why: a clause that follows its name."""

    name: str
    why: str
