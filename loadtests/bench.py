"""`penstock bench`: the group that this package registers in `penstock.commands`, with all that it has.

It is imported for each `penstock --help`, so it imports none of the commands.
"""

from __future__ import annotations

from typing import Any

import click

from api.cli.command_line import CONTEXT, CommandEntry, LazyGroup

_DEV_LINE = "Test Penstock itself: deaths, edges, growth, and where a step goes."
_DEVELOPERS = {
    "chaos": CommandEntry(
        "loadtests.chaos.commands:chaos",
        "Kill engines at random moments; compare every answer with an undisturbed run's.",
    ),
    "fuzz": CommandEntry(
        "loadtests.fuzz.commands:fuzz",
        "Send bodies with boundary values in every number: no engine may die, no answer may fail.",
    ),
    "long-soak": CommandEntry(
        "loadtests.chaos.commands:long_soak",
        "Run load for hours and kill an engine every minute: nothing may grow (Linux only).",
    ),
    "step": CommandEntry(
        "loadtests.step.commands:step",
        "Show where a decode step goes, from the engine to the client, beside a bare BatchGenerator.",
    ),
}

dev = LazyGroup(
    "dev",
    entries=_DEVELOPERS,
    context_settings=CONTEXT,
    help=_DEV_LINE,
)


class _Bench(LazyGroup):
    """Load tests by their names."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        words = [argument for argument in args if not argument.startswith("-")]
        if words and words[0] in _DEVELOPERS:  # As they were called before there was `dev`.
            args = ["dev", *args]
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        from loadtests.command_line import exit_codes

        with exit_codes():
            return super().invoke(ctx)


_COMMANDS = {
    "dev": CommandEntry("loadtests.bench:dev", _DEV_LINE),
    "compare": CommandEntry(
        "loadtests.command_line:compare", "Run scenarios against one or several targets, in turn: A B A B."
    ),
    "device": CommandEntry(
        "loadtests.device.commands:device",
        "Check every branch of the engine on this device; measure steps and memory.",
    ),
    "report": CommandEntry("loadtests.command_line:draw_report", "Draw the runs of several files together."),
    "scenarios": CommandEntry(
        "loadtests.command_line:list_scenarios", "List the scenarios and the servers that can be started."
    ),
    "sustain": CommandEntry(
        "loadtests.command_line:sustain",
        "Search for the number of agents that each target sustains within the scenario's SLO.",
    ),
    "verdict": CommandEntry(
        "loadtests.command_line:judge", "Compare with a stored baseline; exit 1 on a regression."
    ),
}

bench = _Bench(
    "bench",
    entries=_COMMANDS,
    context_settings=CONTEXT,
    help="Load-test any OpenAI-compatible server.",
)
