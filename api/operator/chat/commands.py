"""The lines that begin with a slash: what each one is, and what completes it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from api.operator.chat.conversation import SETTINGS


@dataclass(frozen=True, slots=True)
class Question:
    """Not a command: text for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    """One of COMMANDS."""
    argument: str = ""
    forced: bool = False
    """Written with `!`: a file may be overwritten."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A command that cannot be done: a line for the user."""

    message: str


Line = Question | Command | Mistake


@dataclass(frozen=True, slots=True)
class _Kind:
    shape: str
    help: str
    needs: bool = False
    """Whether it must have an argument."""


COMMANDS: Mapping[str, _Kind] = {
    "system": _Kind("[TEXT]", "set the system message; without text: remove it"),
    "model": _Kind("[NAME]", "use another model; without a name: list them"),
    "set": _Kind("[NAME VALUE]", "set a sampling parameter; VALUE default: the model's own"),
    "thinking": _Kind("", "show the thinking of the last answer"),
    "retry": _Kind("", "ask the last question again"),
    "clear": _Kind("", "forget the conversation, keep the system message"),
    "save": _Kind("FILE", "save as .md or .json; /save! overwrites", needs=True),
    "load": _Kind("FILE", "go on with a conversation saved as .json", needs=True),
    "help": _Kind("", "show this"),
    "quit": _Kind("", "end (as Ctrl-D, or Ctrl-C twice)"),
}


def read_line(line: str) -> Line | None:
    """Return what the user has entered; None: nothing. A space before the slash makes it a question."""
    if not line.strip():
        return None
    if not line.startswith("/"):
        return Question(line.strip())
    word, _, argument = line[1:].strip().partition(" ")
    name, forced, argument = word.removesuffix("!"), word.endswith("!"), argument.strip()
    if (kind := COMMANDS.get(name)) is None or (forced and name != "save"):
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        return Mistake(f"no command /{word}: {hint} (a space in front sends the line as it is)")
    if argument and not kind.shape:
        return Mistake(f"/{name} takes nothing behind it")
    if kind.needs and not argument:
        return Mistake(f"/{name} needs {kind.shape}")
    return Command(name, argument, forced)


def help_text() -> str:
    rows = [(f"/{name} {kind.shape}".rstrip(), kind.help) for name, kind in COMMANDS.items()]
    width = max(len(left) for left, _ in rows)
    lines = [f"  {left:{width}}  {right}" for left, right in rows]
    keys = "  Ctrl-C: stop the answer.  Alt-Enter, Ctrl-J or \\ at the end: a new line."
    return "\n".join([*lines, keys])


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    start: int
    """Characters before the cursor that it replaces, as a negative number."""


def completions(before: str, models: Sequence[str]) -> list[Completion]:
    """Return what may stand at the cursor, behind the text of the line before it. Paths are not here."""
    if not before.startswith("/"):
        return []
    word, space, argument = before.partition(" ")
    if not space:
        return _matching([f"/{name}" for name in COMMANDS], word)
    match word:
        case "/model":
            return _matching(models, argument)
        case "/set" if " " not in argument:
            return _matching(SETTINGS, argument)
        case _:
            return []


def _matching(words: Iterable[str], typed: str) -> list[Completion]:
    return [Completion(word, -len(typed)) for word in words if word.startswith(typed) and word != typed]
