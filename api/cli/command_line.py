"""The command line: the table of commands, each of which is imported only when it is called."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from api.cli.terminal import exit_code
from api.typed_command import with_typed
from scheduler.errors import OptionError, StartupError

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class CommandEntry(NamedTuple):
    """One command of a LazyGroup."""

    place: str
    """`module:attribute`."""
    help: str
    """Its line in the group's `--help`."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called: together they take seconds, which `--help`
    does not need."""

    def __init__(self, *arguments: Any, entries: Mapping[str, CommandEntry], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (entry := self.entries.get(cmd_name)) is None:
            return None
        module, attribute = entry.place.split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted((name, entry.help) for name, entry in self.entries.items()))


class _Penstock(LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        """End every command on Ctrl-C here, also one that comes in a nursery's group, with 130 and without a
        message, instead of click's "Aborted!" and 1."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            group = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
            if group.subgroup(KeyboardInterrupt) is None:
                raise
            sys.exit(exit_code(signal.SIGINT))


_COMMANDS = {
    "batch": CommandEntry("api.cli.batch.command:batch", "Answer a file of requests into another file."),
    "bench": CommandEntry("loadtests.bench:bench", "Load-test any OpenAI-compatible server."),
    "chat": CommandEntry("api.cli.chat:chat", "Chat with a model, on the terminal or in a pipe."),
    "doctor": CommandEntry(
        "api.cli.doctor.command:doctor",
        "Say what this machine can serve, and what stands in the way.",
    ),
    "engine": CommandEntry("api.cli.join:engine", "Compute for a server on another machine."),
    "launch": CommandEntry("api.cli.launch.command:launch", "Start Claude Code, Codex, ... at this server."),
    "models": CommandEntry("api.cli.models.listing:models", "List the models on this machine."),
    "pull": CommandEntry("api.cli.models.pull:pull", "Download a model from the Hugging Face hub."),
    "serve": CommandEntry(
        "api.cli.serve_command:serve", "Serve a model to OpenAI's and Anthropic's clients."
    ),
    "service": CommandEntry("api.cli.service:service", "Run the server under launchd or systemd."),
    "show": CommandEntry(
        "api.cli.models.show:show", "Show a model: files, dialects, and the memory it takes."
    ),
}


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from api.version import own_version

        click.echo(f"penstock {own_version()}")
        ctx.exit()


@click.group(cls=_Penstock, entries=_COMMANDS, context_settings=CONTEXT)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show release and commit, and exit.",
)
def penstock() -> None:
    """Continuous batching for language models on Apple MLX."""


def main() -> None:
    """Run the command line. The exit code is 0 after success (`serve`: after its drain), 1 if the command
    could not start or failed, 2 if an option was refused, 130 after Ctrl-C."""
    _open_closed_streams()
    try:
        penstock()
    except StartupError as error:
        print(f"penstock: {with_typed(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, OptionError) else 1)


def _open_closed_streams() -> None:
    """Open the null device where a standard stream was closed (`<&-`). Python has None there, and the next
    file or socket that is opened would take its descriptor, which children inherit."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


if __name__ == "__main__":
    main()
