"""`penstock serve`: its options on the command line and in the environment."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource

from api.options import options
from api.options.settings import ServeSettings
from api.rotating_log import RotatingLog
from scheduler.errors import OptionError
from scheduler.shared.user_cache import user_cache_folder

_LOG_BYTES, _LOG_FILES = 10_000_000, 3
_POSITIONAL = "positional_model"
"""Parameter of the model that is given without `--model`."""


class _GroupedHelp(click.Command):
    """Shows options under their groups' headings, in the order of their declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = {option.field: option for option in options.options()}
        described = []
        for parameter in self.get_params(ctx):
            option = known.get(parameter.name or "")
            # The command's own text describes its argument.
            if isinstance(parameter, click.Argument) or (record := parameter.get_help_record(ctx)) is None:
                continue
            described.append(("Other" if option is None else option.group, record))
        for group, records in groupby(described, key=lambda pair: pair[0]):
            with formatter.section(group):
                formatter.write_dl([record for _, record in records])


def _click_option(option: options.Option) -> click.Option:
    """Return the option, whose value stays text here: `options.load` checks them all, and names the option
    when it refuses one."""
    default = f"  [default: {option.default_text}]" if option.default_text else ""
    return click.Option(
        [options.flag(option.field)],
        metavar="|".join(option.choices) or "VALUE",
        help=f"{option.help}{default}",
        envvar=options.variable(option.field),
        show_envvar=True,
        type=_WithCommas() if option.repeated else None,
        multiple=option.repeated,
    )


class _WithCommas(click.types.StringParamType):
    """The type of an option that may be given several times: its variable has the values separated by
    commas."""

    envvar_list_splitter = ","


def _settings(ctx: click.Context, environment: Mapping[str, str]) -> ServeSettings:
    """Return the settings given on the command line of `serve` and in the environment. Raise OptionError."""
    options.refuse_unknown_variables(environment)
    given = {
        name: text if isinstance(text, str) else ",".join(text)
        for name, text in ctx.params.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if (positional := given.pop(_POSITIONAL, None)) is not None:
        if given.get("model", positional) != positional:
            raise OptionError(f"the model is given twice: {positional} and --model {given['model']}")
        given["model"] = positional
    left = {one.field: environment.get(options.variable(one.field)) for one in options.options()}
    # As for click, an empty variable is none.
    return options.load(given, {name: text for name, text in left.items() if text})


def serve_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> ServeSettings:
    """Check a command line of `serve` without serving. Raise click.UsageError or OptionError."""
    return _settings(serve.make_context("penstock serve", list(arguments)), environment)


@click.pass_context
def _serve(ctx: click.Context, /, **given: Any) -> None:
    """Serve a model to OpenAI's and Anthropic's clients.

    MODEL is that of --model: a folder, a Hugging Face hub id, smollm2 (the default), or embedded.
    """
    checked = _settings(ctx, os.environ)
    # The collector would traverse the imported objects again and again: a sixth of a start's CPU time.
    gc.disable()
    # Imported here, because `--help` and a refused option do not need it and it takes seconds.
    from api import serving

    gc.freeze()
    gc.enable()
    serving.serve(checked, _log_file(checked))


def _log_file(settings: ServeSettings) -> RotatingLog | None:
    """Return the file for the log where somebody reads standard error on a terminal, if it can be written."""
    if settings.log_format == "json" or not sys.stderr.isatty():
        return None
    folder = user_cache_folder(os.environ) / "logs"
    with suppress(OSError):
        return RotatingLog(folder / f"serve-{settings.port}.log", _LOG_BYTES, _LOG_FILES)
    return None


serve = _GroupedHelp(
    "serve",
    callback=_serve,
    params=[
        click.Argument([_POSITIONAL], required=False, metavar="[MODEL]"),
        *map(_click_option, options.options()),
    ],
    help=_serve.__doc__,
)
