"""`penstock chat` on a terminal: read a line, change the conversation, show the answer."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import httpx
import trio
from rich.console import Console
from rich.text import Text

from api.operator.answer import Answer
from api.operator.asking import ask_until_interrupt
from api.operator.chat.answer_view import AnswerView
from api.operator.chat.conversation import Conversation
from api.operator.chat.saved import NotSaved, load, save
from api.operator.chat.steps import Effect, Step, step
from api.operator.errors import OperatorError
from api.operator.running_server import RunningServer, find
from api.operator.terminal import exit_code, printable, unechoed

_FRAME_SECONDS = 0.1
_INTERRUPTS_TO_QUIT = 2

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
        """Ctrl-C since the last line was entered."""

    @property
    def models(self) -> Sequence[str]:
        """As the server last listed them."""
        return [model.name for model in self._server.chat_models]

    def run(self, read_line: ReadLine) -> bool:
        """Return at `/quit`, Ctrl-D, or Ctrl-C twice; the latter: True."""
        while True:
            try:
                line = read_line()
            except EOFError:
                return False
            except KeyboardInterrupt:
                if self._interrupt():
                    return True
                self._say("Ctrl-C again or Ctrl-D ends; /help lists the commands")
                continue
            self._interrupts = 0
            if line.startswith("/model"):
                self._list_models()
            done = step(line, self.conversation, self.models)
            self.conversation = done.conversation
            if done.said:
                self._say(done.said, is_mistake=done.is_mistake)
            if done.effect is Effect.QUIT:
                return False
            self._carry_out(done)

    def _interrupt(self) -> bool:
        self._interrupts += 1
        return self._interrupts >= _INTERRUPTS_TO_QUIT

    def _carry_out(self, done: Step) -> None:
        try:
            match done.effect:
                case Effect.ASK:
                    self._ask()
                case Effect.SAVE:
                    self._say(f"saved {save(self.conversation, done.path, overwrite=done.overwrite)}")
                case Effect.LOAD:
                    self._load(done.path)
                case Effect.SHOW_THINKING:
                    reply = self.conversation.last_reply
                    self._say("" if reply is None else reply.thinking.strip())
                case Effect.NOTHING | Effect.QUIT:
                    pass
        except NotSaved as error:
            self._say(str(error), is_mistake=True)

    def _load(self, path: str) -> None:
        loaded = load(path)
        said = f"{len(loaded.turns)} turns with {loaded.model}"
        if loaded.model not in self.models:
            said += f", which is not here: {self.conversation.model} goes on"
            loaded = replace(loaded, model=self.conversation.model)
        self.conversation = replace(loaded, tools=self.conversation.tools)
        self._say(said)

    def _ask(self) -> None:
        answer = trio.run(self._show_answer)
        self.conversation = self.conversation.answered(answer.reply())
        if answer.stopped_by == signal.SIGINT:
            self._interrupts += 1
        elif answer.stopped_by is not None:
            sys.exit(exit_code(answer.stopped_by))
        elif answer.failure is not None:
            self._say("/retry asks again")

    async def _show_answer(self) -> Answer:
        answer = Answer(trio.current_time())
        terminal = unechoed(sys.stdin.fileno()) if self._console.is_terminal else nullcontext()
        with terminal, AnswerView(self._console, answer) as view:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_draw_forever, view)
                where = self._server.address
                await ask_until_interrupt(where, self.conversation.body(), answer, _nothing, self._transport)
                nursery.cancel_scope.cancel()
            view.finish(trio.current_time())
        return answer

    def _list_models(self) -> None:
        """Keep the last list where the server does not answer."""
        try:
            self._server = find(self._server.address)
        except OperatorError as error:
            self._say(str(error), is_mistake=True)

    def _say(self, text: str, *, is_mistake: bool = False) -> None:
        self._console.print(Text(printable(text), style="red" if is_mistake else "dim"))


def _nothing() -> None:
    """The view is drawn by the clock, not by each piece."""


async def _draw_forever(view: AnswerView) -> None:
    while True:
        view.draw(trio.current_time())
        await trio.sleep(_FRAME_SECONDS)
