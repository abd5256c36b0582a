"""Cut a stream of text into sections (text, reasoning, tool call, hidden) at the marks between them.

It works like mlx-lm's TextStateMachine, but on decoded text: a mark's last character may be one token with
what follows. Text that may begin a mark is held back until it is decided, so the sections do not depend on
the pieces in which the text arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

from scheduler.answer.stop_strings import possible_beginning


class SectionKind(Enum):
    TEXT = auto()
    REASONING = auto()
    CALL = auto()
    """The inside of one tool call, or of several, in the model's format."""
    HIDDEN = auto()
    """Headers that are not part of the answer."""


@dataclass(frozen=True, slots=True)
class Section:
    """The kind of a run of text. `call_name`: the tool, if the format names it outside the call.
    `in_reasoning`: the reasoning was not closed, so this may be a call or a text about one."""

    kind: SectionKind
    call_name: str | None = None
    in_reasoning: bool = False


TEXT = Section(SectionKind.TEXT)
REASONING = Section(SectionKind.REASONING)
CALL = Section(SectionKind.CALL)
CALL_IN_REASONING = Section(SectionKind.CALL, in_reasoning=True)
HIDDEN = Section(SectionKind.HIDDEN)


@dataclass(frozen=True, slots=True)
class Opened:
    """A section begins and the one before it ends. `mark` separated them."""

    section: Section
    mark: str


Cut: TypeAlias = str | Opened


@dataclass(frozen=True, slots=True)
class Edge:
    """`mark` ends the section and opens `target`. `only_first`: only if nothing but white space precedes it
    in its section."""

    mark: str
    target: Section
    only_first: bool = False


class Splitter(Protocol):
    """Splits one answer into sections."""

    @property
    def section(self) -> Section: ...

    def feed(self, text: str) -> Iterator[Cut]:
        """Yield pieces of the current section, and openings of new ones; with their marks they join to
        `text`. Exhaust the iterator before the next call."""
        ...

    def finish(self) -> str:
        """Return the held back rest of the current section at the end of the text."""
        ...

    def reopen(self, section: Section) -> None:
        """Continue `section` in place of the section just opened. Call it only directly after an Opened."""
        ...


class MarkSplitter:
    """Splits formats in which marks alone decide: a table of edges by section."""

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
        """Return the edge whose complete mark begins first (at equal positions the longest), if any."""
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
        """Yield the edges that may still be taken."""
        for edge in self._edges.get(self._section, ()):
            if not edge.only_first or (self._first and not _beyond_first(text, edge.mark)):
                yield edge


def _beyond_first(text: str, mark: str) -> bool:
    """Return whether `text` has something other than white space and the beginning of `mark`."""
    rest = text.lstrip()
    return bool(rest) and not mark.startswith(rest)
