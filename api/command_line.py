"""`penstock`: what an operator types."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from itertools import groupby
from typing import Any

import click

from api import settings
from scheduler.errors import OptionError, StartupError


class _GroupedHelp(click.Command):
    """Options under their groups' headings, in the order in which they are declared."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {option.field: option.group for option in settings.options()}
        described = [
            (groups.get(parameter.name or "", "Other"), record)
            for parameter in self.get_params(ctx)
            if (record := parameter.get_help_record(ctx)) is not None
        ]
        for group, records in groupby(described, key=lambda pair: pair[0]):
            with formatter.section(group):
                formatter.write_dl([record for _, record in records])


def _click_option(option: settings.Option) -> click.Option:
    """Values stay text here: `settings.load` checks them all, and names the option when it refuses."""
    default = "" if option.default is None or option.field == "scripted" else f"  [default: {option.default}]"
    return click.Option(
        [option.flag],
        metavar="|".join(option.choices) or "VALUE",
        help=f"{option.help}{default}",
        envvar=option.variable,
        show_envvar=True,
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("penstock"), prog_name="penstock")
def penstock() -> None:
    """Continuous batching for language models on Apple MLX."""


def _serve(**given: Any) -> None:
    """Serve a model to OpenAI clients."""
    settings.refuse_unknown_variables(os.environ)
    checked = settings.load({name: value for name, value in given.items() if value is not None})
    # Here and not above: `--help` and a refused option answer at once.
    from api import serving

    serving.serve(checked)


penstock.add_command(
    _GroupedHelp(
        "serve",
        callback=_serve,
        params=[_click_option(option) for option in settings.options()],
        help=_serve.__doc__,
    )
)


@penstock.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Load-test any OpenAI-compatible server; `penstock bench --help` says how."""
    # Here and not above: serving has no use for it.
    from loadtests import command_line

    command_line.main(arguments)


def main() -> None:
    """Exit codes: 0 served and drained, 1 could not start or was lost, 2 an option was refused."""
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
