"""All commands and options as data, read from click's objects, for completion and the manual page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from api.options import options
from api.settings import ServeSettings

_PATHS = frozenset(("model", "blas"))
"""Options of `serve` that take a path among other things."""


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    metavar: str
    """Empty: it takes no value."""
    help: str
    choices: tuple[str, ...] = ()
    is_path: bool = False
    group: str = ""
    """The heading that it stands under; empty: none."""

    @property
    def takes_value(self) -> bool:
        return bool(self.metavar)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    path: tuple[str, ...]
    """Its words from the program's name on."""
    help: str
    arguments: str
    """As the usage line has them."""
    options: tuple[Option, ...]
    commands: tuple[Command, ...] = ()
    words: tuple[str, ...] = ()
    """What its first argument may be, where that is known."""
    takes_path: bool = False
    """Whether its arguments are files."""

    @property
    def short_help(self) -> str:
        """The help's first sentence."""
        line = " ".join(self.help.split("\n\n")[0].split())
        return line.split(". ")[0].rstrip(".")

    def walk(self) -> Iterator[Command]:
        """Yield it and all below it."""
        yield self
        for command in self.commands:
            yield from command.walk()


def tree(root: click.Command, name: str = "penstock") -> Command:
    """Return all commands. Imports each one's module, which takes seconds."""
    return _command(root, name, (), None)


def _command(
    command: click.Command, name: str, above: tuple[str, ...], parent: click.Context | None
) -> Command:
    path = (*above, name)
    context = click.Context(command, parent, name, **command.context_settings)
    parameters = command.get_params(context)
    arguments = [one for one in parameters if isinstance(one, click.Argument)]
    below: tuple[Command, ...] = ()
    if isinstance(command, click.Group):
        found = [(one, command.get_command(context, one)) for one in command.list_commands(context)]
        below = tuple(
            _command(one, own, path, context) for own, one in found if one is not None and not one.hidden
        )
    return Command(
        name,
        path,
        inspect.cleandoc(command.help or "").split("\f")[0].replace("\b\n", ""),
        " ".join("COMMAND ..." if below and not arguments else one.make_metavar(context) for one in arguments)
        or ("COMMAND ..." if below else ""),
        tuple(
            _of_serve(one, context) if path[1:] == ("serve",) else _option(one, context)
            for one in parameters
            if isinstance(one, click.Option) and not one.hidden
        ),
        below,
        next((_choices(one) for one in arguments), ()),
        any(_is_path(one) for one in arguments),
    )


def _option(one: click.Option, context: click.Context, group: str = "") -> Option:
    value = not (one.is_flag or one.count)
    metavar = one.make_metavar(context) if value else ""
    flags = (*one.opts, *one.secondary_opts)
    return Option(flags, metavar, _text(one.help or ""), _choices(one), _is_path(one), group)


def _of_serve(one: click.Option, context: click.Context) -> Option:
    """Its options keep their values as text for click; their fields know more."""
    known: dict[str | None, Any] = {option.field: option for option in options()}
    if (option := known.get(one.name)) is None:
        return _option(one, context, "Other")
    annotation = ServeSettings.model_fields[option.field].annotation
    is_path = option.field in _PATHS or Path in (annotation, *get_args(annotation))
    metavar = "|".join(option.choices) or "VALUE"
    return Option(tuple(option.flags), metavar, _text(one.help or ""), option.choices, is_path, option.group)


def _choices(one: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, one.type.choices)) if isinstance(one.type, click.Choice) else ()


def _is_path(one: click.Parameter) -> bool:
    return isinstance(one.type, click.Path | click.File)


def _text(help_: str) -> str:
    return " ".join(help_.split())
