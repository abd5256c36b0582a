"""Split Markdown that is still being written into blocks that are finished and the last one, which is not.

A finished block never changes, so a terminal prints it once; only the last one is drawn again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)$")
_MOST_LINES = 40
"""Of a code block, before its beginning is finished on its own."""
_MOST_CHARACTERS = 4000
"""Of any other block; likewise."""


@dataclass(frozen=True, slots=True)
class Block:
    source: str
    """As written: all blocks joined are the text."""
    before: str = ""
    """The line that opens the code block, where `source` is a later part of it."""
    after: str = ""
    """The line that closes it, where `source` does not."""

    @property
    def markdown(self) -> str:
        return self.before + self.source + self.after


class Blocks:
    def __init__(self) -> None:
        self._lines: list[str] = []
        """Of the block that is being written."""
        self._characters = 0
        self._partial = ""
        """The line that is being written."""
        self._opening = ""
        """The line that opened the code block that the next line belongs to."""
        self._close = ""
        """What closes it: three backticks or more, or tildes."""
        self._before = ""
        self._blank = False

    def feed(self, text: str) -> list[Block]:
        """Return the blocks that are finished with this text."""
        finished: list[Block] = []
        *lines, last = text.split("\n")
        for line in lines:
            whole, self._partial = self._partial + line + "\n", ""
            finished += self._line(whole)
        self._partial += last
        if len(self._partial) > 2 * _MOST_CHARACTERS and not self._opening:
            # A line that long is no table and no heading: break it where a paragraph may break.
            at = self._partial.rfind(" ", _MOST_CHARACTERS) + 1 or len(self._partial)
            self._add(self._partial[:at])
            self._partial = self._partial[at:]
            finished += self._finish()
        return finished

    @property
    def rest(self) -> Block:
        """What is not finished."""
        source = "".join(self._lines) + self._partial
        return Block(source, self._before, self._closing(source))

    def _line(self, line: str) -> list[Block]:
        if self._opening:
            return self._code_line(line)
        if not line.strip():
            self._add(line)
            self._blank = True
            return []
        fence = _FENCE.match(line.rstrip("\n"))
        finished: list[Block] = []
        # Behind a blank line, an indented one may go on with a list.
        if self._lines and not line[0].isspace():
            long = self._characters > _MOST_CHARACTERS
            if self._blank or long or (fence is not None and not fence[1]):
                finished = self._finish()
        self._blank = False
        self._add(line)
        if fence is not None:
            self._opening, self._close = line, fence[2]
        return finished

    def _code_line(self, line: str) -> list[Block]:
        self._add(line)
        bare = line.strip()
        top_level = not self._opening[0].isspace()
        if len(bare) >= len(self._close) and not bare.strip(self._close[0]):
            self._opening = self._close = ""
            return self._finish() if top_level else []
        if top_level and len(self._lines) > _MOST_LINES:
            return self._finish()
        return []

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._characters += len(line)

    def _finish(self) -> list[Block]:
        source = "".join(self._lines)
        block = Block(source, self._before, self._closing(source))
        self._lines, self._characters, self._blank = [], 0, False
        self._before = self._opening
        return [block]

    def _closing(self, source: str) -> str:
        if not self._opening:
            return ""
        return ("" if source.endswith("\n") or not source else "\n") + self._close + "\n"
