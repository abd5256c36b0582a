"""Cuts a stream of text into sections (text, reasoning, tool call, hidden) at the marks between them.

Like mlx-lm's TextStateMachine, on decoded text and not on token ids: a mark's last character may be one
token with what follows. Text that may be the beginning of a mark is held back until that is certain, so
the sections do not depend on the pieces in which the text arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

from scheduler.answer.stop_strings import possible_beginning


class Kind(Enum):
    TEXT = auto()
    REASONING = auto()
    CALL = auto()
    """The inside of a tool call, or of several, as the model's dialect writes them."""
    HIDDEN = auto()
    """Addresses and headers: for nobody's eyes."""


@dataclass(frozen=True, slots=True)
class Section:
    """What a run of text is. `call_name` where the dialect names a call outside of it. `in_reasoning`:
    the model had not closed its reasoning, so that this may be a call or words about one."""

    kind: Kind
    call_name: str | None = None
    in_reasoning: bool = False


TEXT = Section(Kind.TEXT)
REASONING = Section(Kind.REASONING)
CALL = Section(Kind.CALL)
CALL_IN_REASONING = Section(Kind.CALL, in_reasoning=True)
HIDDEN = Section(Kind.HIDDEN)


@dataclass(frozen=True, slots=True)
class Opened:
    """A section begins, and the one before it is over. `mark` is what stood between them."""

    section: Section
    mark: str


Cut: TypeAlias = str | Opened


@dataclass(frozen=True, slots=True)
class Edge:
    """`mark` ends the section and opens `target`. `only_first`: only where nothing but white space
    stands before it in its section."""

    mark: str
    target: Section
    only_first: bool = False


class Splitter(Protocol):
    """A model's way of writing sections."""

    @property
    def section(self) -> Section: ...

    def feed(self, text: str) -> Iterator[Cut]:
        """Pieces of the current section, and openings of new ones: with their marks they join to the text.
        To be exhausted before the next."""
        ...

    def finish(self) -> str:
        """What was held back of the current section; the text has ended."""
        ...

    def reopen(self, section: Section) -> None:
        """What just opened is the rest of `section` after all. Only right after an Opened."""
        ...


class MarkSplitter:
    """For every dialect whose marks alone decide: a table of edges by section."""

    def __init__(self, edges: Mapping[Section, Sequence[Edge]], initial: Section = TEXT) -> None:
        self._edges = edges
        self._section = initial
        self._held = ""
        self._first = True

    @property
    def section(self) -> Section:
        return self._section

    def feed(self, text: str) -> Iterator[Cut]:
        self._held += text
        while (found := self._next_edge()) is not None:
            start, edge = found
            before, self._held = self._held[:start], self._held[start + len(edge.mark) :]
            if before:
                yield before
            self._section, self._first = edge.target, True
            yield Opened(edge.target, edge.mark)
        keep = possible_beginning(self._held, [edge.mark for edge in self._open_edges(self._held)])
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if certain:
            self._first = self._first and not certain.strip()
            yield certain

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def reopen(self, section: Section) -> None:
        self._section, self._first = section, False

    def _next_edge(self) -> tuple[int, Edge] | None:
        """The edge whose mark begins first (of several there, the longest mark), if one is whole."""
        edges = self._edges.get(self._section, ())
        found = [
            (start, -len(edge.mark), position)
            for position, edge in enumerate(edges)
            if (start := self._held.find(edge.mark)) >= 0 and self._allows(edge, start)
        ]
        if not found:
            return None
        start, _, position = min(found)
        return start, edges[position]

    def _allows(self, edge: Edge, start: int) -> bool:
        return not edge.only_first or (self._first and not self._held[:start].strip())

    def _open_edges(self, text: str) -> Iterator[Edge]:
        """The edges that may still be taken."""
        for edge in self._edges.get(self._section, ()):
            if not edge.only_first or (self._first and not _beyond_first(text, edge.mark)):
                yield edge


def _beyond_first(text: str, mark: str) -> bool:
    """Whether `text` has something other than white space and the beginning of `mark`."""
    rest = text.lstrip()
    return bool(rest) and not mark.startswith(rest)
