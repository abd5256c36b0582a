"""`penstock bench`: the group of all that this package has. It imports none of the commands."""

from __future__ import annotations

from typing import Any

import click

from api.cli.command_line import CONTEXT, CommandEntry, LazyGroup

_DEV_LINE = "Test Penstock itself: deaths, edges, and where a step goes."
dev = LazyGroup(
    "dev",
    entries={
        "chaos": CommandEntry(
            "loadtests.chaos.run:chaos",
            "Kill engines at random moments; compare every answer with an undisturbed run's.",
        ),
        "fuzz": CommandEntry(
            "loadtests.fuzz.run:fuzz",
            "Send bodies with boundary values in every number: no engine may die, no answer may fail.",
        ),
        "step": CommandEntry(
            "loadtests.step.commands:step",
            "Show where a decode step goes, in the engine and in the server, beside a bare BatchGenerator.",
        ),
    },
    context_settings=CONTEXT,
    help=_DEV_LINE,
)


class _Bench(LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        from loadtests.commands import exit_codes

        with exit_codes():
            return super().invoke(ctx)


bench = _Bench(
    "bench",
    entries={
        "dev": CommandEntry("loadtests.bench:dev", _DEV_LINE),
        "compare": CommandEntry(
            "loadtests.commands:compare", "Run scenarios against one or several targets, in turn: A B A B."
        ),
        "device": CommandEntry(
            "loadtests.device.commands:device",
            "Check every branch of the engine on this device; measure steps and memory.",
        ),
        "report": CommandEntry("loadtests.commands:draw_report", "Draw the runs of several files together."),
        "scenarios": CommandEntry(
            "loadtests.commands:list_scenarios", "List the scenarios and the servers that can be started."
        ),
    },
    context_settings=CONTEXT,
    help="Load-test any OpenAI-compatible server.",
)
