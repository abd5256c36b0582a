"""An answer on the terminal while it is written: finished blocks are printed once, the last one is live."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import CodeBlock, Markdown
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

from api.operator.answer import Answer, seconds
from api.operator.chat.blocks import Block, Blocks
from api.operator.terminal import one_line, printable

_ROWS_LEFT = 3
"""Of the terminal's height: what is taller than it cannot be erased."""
_CODE_THEME = "ansi_dark"
"""The terminal's own colours, and no background."""


class _Code(CodeBlock):
    """Without rich's empty lines above and below: a long block is printed in parts."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1)
        )


class _AnswerMarkdown(Markdown):
    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code}  # noqa: RUF012  (as rich has it)


def rendered(block: Block) -> RenderableType:
    # A link's text is the model's choice: its target has to be seen.
    return _Lines(_AnswerMarkdown(printable(block.markdown), code_theme=_CODE_THEME, hyperlinks=False))


class _Lines:
    """Without the empty lines that rich puts around some blocks, and the spaces that it fills lines with,
    which would wrap when the terminal gets narrower. `is_tail`: only the last lines, as many as the terminal
    has; the newest words are there."""

    def __init__(self, content: RenderableType, *, is_tail: bool = False) -> None:
        self._content = content
        self._is_tail = is_tail

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [_stripped(line) for line in console.render_lines(self._content, options, pad=False)]
        while lines and not lines[-1]:
            lines.pop()
        begin = next((number for number, line in enumerate(lines) if line), 0)
        if self._is_tail:
            begin = max(0, len(lines) - max(1, console.height - _ROWS_LEFT))
        for line in lines[begin:]:
            yield from line
            yield Segment.line()


def _stripped(line: list[Segment]) -> list[Segment]:
    """Return it without spaces at its end, but those of a coloured background."""
    kept = list(line)
    while kept and not _has_background(kept[-1]):
        last = kept.pop()
        if text := last.text.rstrip():
            return [*kept, Segment(text, last.style, last.control)]
    return kept


def _has_background(segment: Segment) -> bool:
    return segment.style is not None and segment.style.bgcolor is not None


class AnswerView:
    """Draws one answer; a context manager, behind which the terminal is as it was, with the answer on it."""

    def __init__(self, console: Console, answer: Answer) -> None:
        self._console = console
        self._answer = answer
        self._blocks = Blocks()
        self._shown = 0
        """Pieces of the text that were fed to the blocks."""
        self._printed = False
        self._thinking_said = False
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> AnswerView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def draw(self, now: float) -> None:
        """Show what has come since the last call."""
        # Written at once: no frame in between is seen.
        with self._console:
            self._print_finished(now)
            self._live.update(_Lines(self._unfinished(now), is_tail=True), refresh=True)

    def finish(self, now: float) -> None:
        """Print what is left, and the figures."""
        self._print_finished(now)
        # Nothing that is drawn again may be below what is printed now.
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        self._print_thinking(now)
        if self._blocks.rest.source.strip():
            self._print_block(self._blocks.rest)
        for call in self._answer.calls.values():
            self._print(Text(f"tool call (not run): {printable(call.name)}", style="yellow"))
            self._console.print(Text(printable(call.arguments), style="dim"))
        last = []
        if (remark := self._answer.remark()) is not None:
            last.append(Text(printable(remark), style="yellow" if self._answer.failure is None else "red"))
        if self._answer.stamps:
            last.append(Text(self._answer.figures(), style="dim"))
        if last:
            self._print(Text("\n").join(last))

    def _print_finished(self, now: float) -> None:
        new, self._shown = self._answer.text[self._shown :], len(self._answer.text)
        if new:
            self._print_thinking(now)
        for block in self._blocks.feed("".join(new)) if new else ():
            self._print_block(block)

    def _print_thinking(self, now: float) -> None:
        if self._answer.thinking and not self._thinking_said:
            self._thinking_said = True
            self._print(Text(f"{self._thinking(now)}  (/thinking shows it)", style="dim italic"))

    def _print_block(self, block: Block) -> None:
        # What closes a code block may be all that is left of it.
        if not block.source.strip("`~ \n") and block.before:
            return
        # What is live is drawn again below what is printed, and would be there twice for a moment.
        self._live.update(Text(""), refresh=True)
        if self._printed and not block.before:
            self._console.print()
        self._console.print(rendered(block))
        self._printed = True

    def _print(self, line: Text) -> None:
        if self._printed:
            self._console.print()
        self._console.print(line)
        self._printed = True

    def _unfinished(self, now: float) -> RenderableType:
        answer = self._answer
        if answer.calls:
            *_, call = answer.calls.values()
            status = f"calls {call.name}: {len(call.arguments)} characters"
        elif answer.text:
            rest = self._blocks.rest
            if not rest.source.strip():
                return Text("")
            return rendered(rest) if rest.before or not self._printed else Group("", rendered(rest))
        elif answer.thinking:
            status = self._thinking(now)
        else:
            status = f"{answer.waiting} {seconds(now - answer.sent_at)}"
        return Text(one_line(status, self._console.width), style="dim italic")

    def _thinking(self, now: float) -> str:
        answer = self._answer
        counted = None if answer.usage is None else answer.usage.thinking_tokens
        count = len(answer.thinking) if counted is None else counted
        verb = "thinking…" if answer.thought_until is None and not answer.ended else "thought for"
        return f"{verb} {seconds(answer.thinking_seconds(now))}, {count:,} token{'s' * (count != 1)}"
