"""An answer on the terminal while it is written: finished blocks are printed once, the last one is live."""

from __future__ import annotations

import re

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from api.cli.answer import Answer, in_words, seconds
from api.cli.terminal import one_line, printable

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ROWS_LEFT = 3
"""Rows of the terminal that the live block leaves free: one taller than the terminal cannot be erased."""
_MOST_LIVE_CHARACTERS = 8000
"""Bound on a block that is drawn as Markdown at each frame; the end of a longer one is drawn as text."""


def finished(text: str) -> int:
    """Return the length of the part of unfinished Markdown that will not change: all before the last line
    that follows a blank one outside code and is not indented: an indented one may continue a list."""
    end = at = 0
    fence = ""
    is_blank = False
    for line in text.splitlines(keepends=True):
        if is_blank and not fence and line.strip() and not line[0].isspace():
            end = at
        if found := _FENCE.match(line):
            if not fence:
                fence = found[1]
            elif found[1].startswith(fence) and not line.strip(" \n" + fence[0]):
                fence = ""
        is_blank = not line.strip()
        at += len(line)
    return end


class AnswerView:
    """Draws one answer. It is a context manager; leaving it restores the terminal, with the answer on it."""

    def __init__(self, console: Console, answer: Answer) -> None:
        self._console = console
        self._answer = answer
        self._thought = self._written = 0
        """Numbers of pieces of thinking and text that were taken from the answer."""
        self._thoughts = self._rest = ""
        """Thinking and text that are not printed yet."""
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> AnswerView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def draw(self, now: float) -> None:
        """Show what has come since the last call."""
        # The console writes all of it at once, so that no frame in between is seen.
        with self._console:
            self._print_finished()
            self._live.update(_Lines(self._unfinished(now), is_tail=True), refresh=True)

    def finish(self) -> None:
        """Print what is left, and the figures."""
        self._print_finished(is_all=True)
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        answer = self._answer
        for call in answer.calls.values():
            self._console.print(Text(f"tool call (not run): {printable(call.name)}", style="yellow"))
            self._console.print(Text(printable(call.arguments), style="dim"))
        if (remark := answer.remark()) is not None:
            self._console.print(Text(printable(remark), "yellow" if answer.failure is None else "red"))
        if answer.stamps:
            self._console.print(Text(answer.figures(), "dim"))

    def _print_finished(self, *, is_all: bool = False) -> None:
        answer = self._answer
        self._thoughts += "".join(answer.thinking[self._thought :])
        self._rest += "".join(answer.text[self._written :])
        self._thought, self._written = len(answer.thinking), len(answer.text)
        end = len(self._thoughts) if is_all or answer.text else self._thoughts.rfind("\n") + 1
        if end:
            self._print(_thinking(self._thoughts[:end]))
            self._thoughts = self._thoughts[end:]
        end = len(self._rest) if is_all else finished(self._rest)
        if self._rest[:end].strip():
            self._print(_markdown(self._rest[:end]))
            self._rest = self._rest[end:]
            if self._rest:
                self._console.print()

    def _print(self, block: RenderableType) -> None:
        # The live part is drawn again below what is printed, and without this would show twice for a moment.
        self._live.update(Text(""), refresh=True)
        self._console.print(block)

    def _unfinished(self, now: float) -> RenderableType:
        answer = self._answer
        if self._rest.strip():
            is_long = len(self._rest) > _MOST_LIVE_CHARACTERS
            return Text(printable(self._rest[-_MOST_LIVE_CHARACTERS:])) if is_long else _markdown(self._rest)
        if self._thoughts:
            return _thinking(self._thoughts[-_MOST_LIVE_CHARACTERS:])
        status = "" if answer.stamps else f"{in_words(answer.waiting)}, {seconds(now - answer.sent_at)}"
        for call in answer.calls.values():
            status = f"calls {call.name}: {len(call.arguments)} characters"
        return Text(one_line(status, self._console.width), style="dim italic")


def _thinking(text: str) -> Text:
    return Text(printable(text.removesuffix("\n")), style="dim italic")


def _markdown(text: str) -> RenderableType:
    # The model chooses a link's text, so its target must be visible.
    return _Lines(Markdown(printable(text.strip("\n")), code_theme="ansi_dark", hyperlinks=False))


class _Lines:
    """Lines without rich's empty lines around a block, and without the spaces that it fills lines with, which
    would wrap when the terminal gets narrower. If `is_tail`, only the last lines that fit the terminal."""

    def __init__(self, content: RenderableType, *, is_tail: bool = False) -> None:
        self._content = content
        self._is_tail = is_tail

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options, pad=False)
        for line in lines:
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
        written = [number for number, line in enumerate(lines) if line] or [0]
        begin, end = written[0], written[-1] + 1
        if self._is_tail:
            begin = max(begin, end - max(1, console.height - _ROWS_LEFT))
        for line in lines[begin:end]:
            yield from line
            yield Segment.line()
