"""The command line: `penstock serve`, and the table of what else there is, each in a file of its own."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource

from api import options
from api.operator.terminal import exit_code, is_interrupt
from api.settings import ServeSettings
from api.version import own_version
from scheduler.errors import OptionError, StartupError


class _GroupedHelp(click.Command):
    """Shows options under their groups' headings, in the order of their declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = {option.field: option for option in options.options()}
        described = []
        for parameter in self.get_params(ctx):
            option = known.get(parameter.name or "")
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            names, text = record
            if option is not None:
                names = ", ".join([names.split()[0], *option.flags[1:]]) + f" {_metavar(option)}"
            described.append(("Other" if option is None else option.group, (names, text)))
        for group, records in groupby(described, key=lambda pair: pair[0]):
            with formatter.section(group):
                formatter.write_dl([record for _, record in records])


def _click_options(option: options.Option) -> Iterator[click.Option]:
    """Return one option for each name, so that two names with different values can be refused; help shows
    them together.

    Values stay text here: `options.load` checks them all, and names the option when it refuses one.
    """
    default = f"  [default: {option.default_text}]" if option.default_text else ""
    for name in option.names:
        yield click.Option(
            [options.flag(name)],
            metavar=_metavar(option),
            help=f"{option.help}{default}",
            envvar=options.variable(name),
            show_envvar=True,
            hidden=name != option.field,
            type=_WithCommas() if option.repeated else None,
            multiple=option.repeated,
        )


class _WithCommas(click.types.StringParamType):
    """Of an option that may be given several times: its variable has the values with commas."""

    envvar_list_splitter = ","


def _metavar(option: options.Option) -> str:
    return "|".join(option.choices) or "VALUE"


_COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("api.operator.chat.command:chat", "Chat with a model, on the terminal or in a pipe."),
    "completion": (
        "api.operator.reference.completion:completion",
        "Print a completion script for bash, zsh or fish.",
    ),
    "convert": ("api.operator.models.convert:convert", "Quantise a model, with mlx-lm's converter."),
    "doctor": (
        "api.operator.doctor.command:doctor",
        "Say what this machine can serve, and what stands in the way.",
    ),
    "launch": ("api.operator.launch.command:launch", "Start Claude Code, Codex, ... at this server."),
    "man": ("api.operator.reference.man_page:man", "Show all commands and options on one page."),
    "models": ("api.operator.models.listing:models", "List the models on this machine."),
    "pull": ("api.operator.models.pull:pull", "Download a model from the Hugging Face hub."),
    "rm": ("api.operator.models.remove:rm", "Delete a model from this machine."),
    "service": (
        "api.operator.service.commands:service",
        "Run the server under launchd or systemd, and upgrade it.",
    ),
    "show": ("api.operator.models.show:show", "Show a model: files, dialects, and the memory it takes."),
    "top": ("api.operator.top.command:top", "Show what a server does now."),
}
"""Name -> where the command is, and its line in `penstock --help`.

They are imported when one is called: together they take seconds, which `serve` and `--help` do not need.
"""


class _Commands(click.Group):
    """`serve` and the commands of `_COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), cmd_name
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C ends every command here: without a word, and not with click's "Aborted!" and 1."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if not is_interrupt(error):
                raise
            sys.exit(exit_code(signal.SIGINT))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str(100)) for name, command in self.commands.items()]
        elsewhere = [(name, text) for name, (_, text) in _COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(sorted([*own, *elsewhere]))


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"penstock {own_version()}")
        ctx.exit()


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
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


def _settings(ctx: click.Context) -> ServeSettings:
    """Return what `serve` was given on its command line and in the environment. Raise OptionError."""
    options.refuse_unknown_variables(os.environ)

    def values(source: ParameterSource) -> dict[str, str]:
        return {
            name: text if isinstance(text, str) else ",".join(text)
            for name, text in ctx.params.items()
            if ctx.get_parameter_source(name) is source
        }

    return options.load(values(ParameterSource.COMMANDLINE), values(ParameterSource.ENVIRONMENT))


def serve_settings(arguments: Sequence[str]) -> ServeSettings:
    """Check a command line of `serve` without serving. Raise click.UsageError or OptionError."""
    return _settings(penstock.commands["serve"].make_context("penstock serve", list(arguments)))


@click.pass_context
def _serve(ctx: click.Context, /, **given: Any) -> None:
    """Serve a model to OpenAI's and Anthropic's clients."""
    checked = _settings(ctx)
    # Imported here, because `--help` and a refused option do not need it and it takes seconds.
    from api import serving

    serving.serve(checked)


penstock.add_command(
    _GroupedHelp(
        "serve",
        callback=_serve,
        params=[one for option in options.options() for one in _click_options(option)],
        help=_serve.__doc__,
    )
)


@penstock.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Load-test any server, or self-test a model; see `penstock bench --help`."""
    # Imported here, because `serve` does not need it.
    from loadtests import command_line

    words = [argument for argument in arguments if not argument.startswith("-")]
    if words and words[0] not in command_line.bench.commands:
        from api.operator.models.bench import self_test

        _run(self_test, arguments)
    else:
        with command_line.exit_codes():
            _run(command_line.bench, arguments)


def _run(command: click.Command, arguments: Sequence[str]) -> None:
    """Its errors, exits and interrupts are this command line's."""
    with command.make_context("penstock bench", list(arguments)) as ctx:
        command.invoke(ctx)


def main() -> None:
    """Run the command line. Exit codes: 0 served and drained, 1 could not start or failed, 2 an option was
    refused, 130 Ctrl-C."""
    try:
        penstock()
    except OptionError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(2)
    except StartupError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
