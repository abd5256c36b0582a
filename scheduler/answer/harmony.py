"""Harmony, the format of gpt-oss: messages with a header that names channel and recipient.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>the answer<|return|>

The package `openai-harmony` is not used: it downloads its vocabulary at first use and needs token ids of that
vocabulary, while a model folder has its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduler.answer.splitter import HIDDEN, REASONING, TEXT, Cut, Opened, Section, SectionKind
from scheduler.answer.stop_strings import possible_beginning

MESSAGE = "<|message|>"
START = "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
TOKENS = (MESSAGE, *ENDS, "<|channel|>", "<|constrain|>")

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."
_LONGEST_HEADER = 1024
"""Bound on a header that never ends, which would be copied with each token."""


class HarmonySplitter:
    """A `Splitter`. The generation prompt ends with `<|start|>assistant`, so an answer begins in a header."""

    def __init__(self, *, calls: bool) -> None:
        """`calls`: whether tools were offered; otherwise nothing counts as a call."""
        self._calls = calls
        self._section = HIDDEN
        self._header = ""
        self._held = ""

    @property
    def section(self) -> Section:
        return self._section

    def feed(self, text: str) -> Iterator[Cut]:
        self._held += text
        while (found := self._next_mark()) is not None:
            start, mark = found
            before, self._held = self._held[:start], self._held[start + len(mark) :]
            if self._section is HIDDEN:
                self._read_header(before)
            if before:
                yield before
            if mark == MESSAGE:
                self._section, self._header = self._addressed(self._header), ""
                yield Opened(self._section, mark)
            else:
                self._section, self._header = HIDDEN, ""
                yield Opened(HIDDEN, mark)
        keep = possible_beginning(self._held, self._marks())
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if self._section is HIDDEN:
            self._read_header(certain)
        if certain:
            yield certain

    def finish(self) -> str:
        held, self._held = self._held, ""
        return "" if self._section is HIDDEN else held

    def reopen(self, section: Section) -> None:
        raise AssertionError("Harmony's sections are certain")

    def _read_header(self, text: str) -> None:
        self._header = (self._header + text)[:_LONGEST_HEADER]

    def _marks(self) -> tuple[str, ...]:
        return (MESSAGE, *ENDS) if self._section is HIDDEN else ENDS

    def _next_mark(self) -> tuple[int, str] | None:
        found = [(start, mark) for mark in self._marks() if (start := self._held.find(mark)) >= 0]
        return min(found) if found else None

    def _addressed(self, header: str) -> Section:
        recipient = _RECIPIENT.search(header)
        if recipient is not None and self._calls:
            return Section(SectionKind.CALL, call_name=recipient[1].removeprefix(_FUNCTIONS))
        channel = _CHANNEL.search(header)
        if channel is not None and channel[1] == "analysis":
            return REASONING
        # "final", or "commentary" without a recipient: text for the user before a call.
        return TEXT
