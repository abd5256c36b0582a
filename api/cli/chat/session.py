"""`penstock chat` on a terminal: read a line, change the conversation, show the answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

import httpx
import trio
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import DynamicCompleter, WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text

from api.cli.answer import Answer
from api.cli.asking import ask_until_interrupt
from api.cli.chat.conversation import Conversation
from api.cli.chat.view import AnswerView
from api.cli.errors import OperatorError
from api.cli.running_server import RunningServer, find
from api.cli.terminal import exit_code, printable, received_by, unechoed
from scheduler.shared.user_cache import user_data_folder

_FRAME_SECONDS = 0.1
_INTERRUPTS_TO_QUIT = 2
_COMMANDS = {
    "/system [TEXT]": "set the system message; without text: remove it",
    "/model [NAME]": "use another model; without a name: list them",
    "/set [NAME VALUE]": "set a field of the request, such as temperature; VALUE default: unset it",
    "/clear": "forget the conversation, keep the system message",
    "/help": "show this",
    "/quit": "end (as Ctrl-D, or Ctrl-C twice)",
}
_KEYS = "Ctrl-C: stop the answer.  Alt-Enter: a new line."
_FIELDS = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "repetition_penalty")
"""The fields that completion offers; others can be set, too."""

ReadLine = Callable[[], str]
"""Returns what was entered. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""


class Session:
    def __init__(
        self,
        server: RunningServer,
        conversation: Conversation,
        console: Console,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.conversation = conversation
        self._server = server
        self._console = console
        self._transport = transport
        self._interrupts = 0
        """Number of times that Ctrl-C was pressed since the last line was entered."""

    def words(self) -> list[str]:
        """Return the lines that completion offers."""
        commands = [shape.split()[0] for shape in _COMMANDS]
        models = [f"/model {model.name}" for model in self._server.chat_models]
        return [*commands, *models, *(f"/set {name} " for name in _FIELDS)]

    def run(self, read_line: ReadLine) -> bool:
        """Obey lines until `/quit`, Ctrl-D, or Ctrl-C twice. Return whether it was Ctrl-C."""
        while True:
            try:
                line = read_line()
            except EOFError:
                return False
            except KeyboardInterrupt:
                self._interrupts += 1
                if self._interrupts >= _INTERRUPTS_TO_QUIT:
                    return True
                self._say("Ctrl-C again or Ctrl-D ends; /help lists the commands")
                continue
            self._interrupts = 0
            try:
                if line.startswith("/"):
                    name, *argument = line.rstrip().split(maxsplit=1)
                    if name == "/quit":
                        return False
                    self._say(self._command(name, *argument))
                elif line.strip():
                    self._ask(line.strip())
            except OperatorError as error:
                self._say(str(error), style="red")

    def _command(self, name: str, argument: str = "") -> str:
        """Return the text to show. Raise OperatorError."""
        talk = self.conversation
        match name:
            case "/system":
                talk.system = argument
                return "system message set" if argument else "no system message"
            case "/model" if argument:
                talk.model = argument
                return f"model {argument}"
            case "/model":
                models = [model.name for model in find(self._server.address).chat_models]
                return "\n".join(f"{'*' if one == talk.model else ' '} {one}" for one in models)
            case "/set":
                return self._set(*(part.strip() for part in argument.partition(" ")[::2]))
            case "/clear":
                talk.messages.clear()
                return "forgotten"
            case "/help":
                rows = [f"  {shape:18} {text}" for shape, text in _COMMANDS.items()]
                return "\n".join([*rows, f"  {_KEYS}"])
            case _:
                raise OperatorError(f"no command {name}: /help lists them (a space in front sends the line)")

    def _set(self, name: str, value: str) -> str:
        if name and value:
            self.conversation.set(name, value)
        chosen = self.conversation.settings
        return ", ".join(f"{one} {chosen[one]}" for one in chosen) or "nothing is set"

    def _ask(self, question: str) -> None:
        answer = trio.run(self._show_answer, self.conversation.ask(question), self.conversation.most_pieces)
        self.conversation.keep(answer)
        if answer.stopped_by == signal.SIGINT:
            self._interrupts += 1
        elif answer.stopped_by is not None:
            sys.exit(exit_code(answer.stopped_by))

    async def _show_answer(self, body: dict[str, object], most_pieces: int | None) -> Answer:
        answer = Answer(trio.current_time(), most_pieces=most_pieces)
        terminal = unechoed(sys.stdin.fileno()) if self._console.is_terminal else nullcontext()
        with terminal, AnswerView(self._console, answer) as view:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_draw_forever, view)
                # The view is drawn by the clock, not by each piece.
                where = self._server.address
                await ask_until_interrupt(where, body, answer, lambda: None, self._transport)
                nursery.cancel_scope.cancel()
            view.finish()
        return answer

    def _say(self, text: str, style: str = "dim") -> None:
        self._console.print(Text(printable(text), style=style))


async def _draw_forever(view: AnswerView) -> None:
    while True:
        view.draw(trio.current_time())
        await trio.sleep(_FRAME_SECONDS)


def line_reader(words: Callable[[], list[str]], environment: Mapping[str, str]) -> ReadLine:
    """Return a function that reads a line from the terminal, with completion and a history."""
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    session: PromptSession[str] = PromptSession(
        history=history(user_data_folder(environment)),
        completer=DynamicCompleter(lambda: WordCompleter(words(), sentence=True)),
        complete_while_typing=True,
        key_bindings=keys,
        prompt_continuation="… ",
    )
    ended_by: list[int] = []

    def leave() -> None:
        future = session.app.future
        if ended_by and future is not None and not future.done():
            session.app.exit(result="")

    def end(number: int, frame: FrameType | None) -> None:
        # SystemExit, raised within asyncio's loop, would leave the terminal in raw mode, or hang.
        ended_by.append(number)
        if (loop := session.app.loop) is not None:
            loop.call_soon_threadsafe(leave)

    def read_line() -> str:
        try:
            with received_by(end):
                return session.prompt("> ", pre_run=leave)
        finally:
            if ended_by:
                sys.exit(exit_code(ended_by[0]))

    return read_line


def history(folder: Path) -> History:
    """Return the history of entered lines: a file that only this user can read, or, if it cannot be written,
    one in memory that begins empty."""
    path = folder / "chat-history"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
