"""A setup as a command for a POSIX shell: `--print`, and the commands in `api/AGENTS.md`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from itertools import pairwise

from api.cli.launch.agent import FOLDER, Setup

_WIDTH = 118
_VARIABLE = "settings"
_END = "END"
_BREAK = " \\\n  "


def text(setup: Setup, command: tuple[str, ...], present: Collection[str] = ()) -> str:
    """Return what a user could type instead: `command` is the agent and all of its arguments.

    `present`: names in the environment; the command removes those that `setup.removed` lists.
    """
    removed = [word for name in setup.removed if name in present for word in ("-u", name)]
    words = [
        *(["env", *removed] if removed else []),
        *(f"{name}={_quoted(value)}" for name, value in setup.environment.items()),
        *map(_quoted, command),
    ]
    return "\n".join([*_files(setup), _wrapped(words)])


def _files(setup: Setup) -> Iterator[str]:
    if setup.files:
        yield f"{_VARIABLE}=$(mktemp -d)"
    for name, content in setup.files.items():
        yield f"cat > \"${_VARIABLE}/{name}\" <<'{_END}'\n{content}\n{_END}"


def _quoted(word: str) -> str:
    if not word.startswith(FOLDER):
        return shlex.quote(word)
    return f'"${_VARIABLE}{word.removeprefix(FOLDER)}"'


def _wrapped(words: list[str]) -> str:
    """Break lines between words, never in one, and not between an option and its value."""
    units = [words[0]]
    for before, word in pairwise(words):
        if before.startswith("-") and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = [units[0]]
    for unit in units[1:]:
        if len(f"{lines[-1]} {unit}") > _WIDTH - len(_BREAK):
            lines.append(unit)
        else:
            lines[-1] += f" {unit}"
    return _BREAK.join(lines)
