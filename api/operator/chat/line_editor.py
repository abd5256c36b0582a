"""The line that the user types: history, completion, several lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, PathCompleter
from prompt_toolkit.completion import Completion as Shown
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from api.operator.chat.commands import completions
from scheduler.user_cache import user_cache_folder

_MOST_HISTORY_BYTES = 1 << 20
_FILE_COMMANDS = ("/save", "/save!", "/load")


class LineEditor:
    """`models` is called for each completion."""

    def __init__(self, models: Callable[[], Sequence[str]], environment: Mapping[str, str]) -> None:
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            history=history(user_cache_folder(environment)),
            completer=_Commands(models),
            complete_while_typing=True,
            key_bindings=_keys(),
            prompt_continuation="… ",
            enable_open_in_editor=False,
        )

    def read(self) -> str:
        """Raise EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C on an empty line; on any other it empties
        the line."""
        return self._session.prompt("> ")


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    def interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return keys


class _Commands(Completer):
    def __init__(self, models: Callable[[], Sequence[str]]) -> None:
        self._models = models
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Shown]:
        before = document.text_before_cursor
        word, space, argument = before.partition(" ")
        if space and word in _FILE_COMMANDS:
            yield from self._paths.get_completions(Document(argument), event)
        for found in completions(before, self._models()):
            yield Shown(found.text, found.start)


def history(folder: Path) -> History:
    """Return the lines that were entered before, in a file that only this user reads. Where it cannot be
    written, they are kept in memory."""
    path = folder / "chat-history"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            os.fchmod(file.fileno(), 0o600)
            _shorten(path, file.read())
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _shorten(path: Path, content: bytes) -> None:
    """Keep the newer half of a history that has grown too long, from the beginning of an entry."""
    if len(content) <= _MOST_HISTORY_BYTES:
        return
    start = content.find(b"\n# ", len(content) - _MOST_HISTORY_BYTES // 2)
    path.write_bytes(b"" if start < 0 else content[start:])
