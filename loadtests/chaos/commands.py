"""Deaths and long load: exit 1 if an answer was lost or changed, or memory grew."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import trio

from loadtests.chaos import report, run, soak

_OUT = click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)

_REQUESTS, _REQUESTS_AN_ENGINE, _SLOW_STEPS = 200, 120, 7
_SCRIPTED = ("--engine", "scripted", "--scripted", "step_seconds=0.05")


@click.command()
@click.option(
    "--requests",
    type=click.IntRange(1),
    help=f"By default {_REQUESTS}; {_REQUESTS_AN_ENGINE} for each of several engines, so that all are busy.",
)
@click.option(
    "--deaths", default=24, show_default=True, help="Engine deaths, of all kinds in turn, at random moments."
)
@click.option(
    "--seed", default=0, show_default=True, help="Random seed of the questions and of the order of deaths."
)
@click.option(
    "--engines",
    default=1,
    show_default=True,
    help="Engines of the server; with several, one to three die at each of --deaths moments.",
)
@click.option(
    "--engine",
    type=click.Choice(["mlx", "scripted"]),
    default="mlx",
    show_default=True,
    help="The embedded model; or tokens by arithmetic, which leave the machine to the server.",
)
@click.option(
    "--slow-steps",
    type=click.IntRange(0),
    help=f"Steps beside the deaths that are slow or hang while clients leave. By default {_SLOW_STEPS}; 0 for"
    " several engines.",
)
@click.option("--poison/--no-poison", default=True, help="Plant a request that crashes every engine.")
@_OUT
def chaos(
    requests: int | None,
    deaths: int,
    seed: int,
    engines: int,
    engine: str,
    slow_steps: int | None,
    poison: bool,
    out: Path,
) -> None:
    """Kill engines at random moments; compare every answer with an undisturbed run's."""
    if requests is None:
        requests = _REQUESTS if engines == 1 else _REQUESTS_AN_ENGINE * engines
    if slow_steps is None:
        slow_steps = _SLOW_STEPS if engines == 1 else 0
    elif slow_steps and engines > 1:
        raise click.UsageError("--slow-steps is for one engine")
    arguments = _SCRIPTED if engine == "scripted" else ()
    plan = run.Plan(requests, deaths, seed, poison, arguments, engines, slow_steps)
    out.mkdir(parents=True, exist_ok=True)
    found = trio.run(run.run, plan, _note)
    _tell(out / "chaos.html", "Chaos", list(found.complaints()), list(report.of_chaos(found)))


@click.command("long-soak")
@click.option("--seconds", default=3600.0, show_default=True)
@click.option("--warm-up-seconds", default=120.0, show_default=True)
@click.option("--kill-every-seconds", default=60.0, show_default=True)
@_OUT
def long_soak(seconds: float, warm_up_seconds: float, kill_every_seconds: float, out: Path) -> None:
    """Run load for hours and kill an engine every minute: nothing may grow (Linux only)."""
    plan = soak.SoakPlan(seconds, warm_up_seconds, kill_every_seconds)
    found = trio.run(soak.run, plan, _note)
    _tell(out / "long-soak.html", "Soak", list(found.complaints()), list(report.of_soak(found)))


def _note(text: str) -> None:
    click.echo(text, err=True)


def _tell(path: Path, title: str, complaints: list[str], sections: list[report.Section]) -> None:
    click.echo(report.text(title, complaints, sections))
    report.write_html(path, title, complaints, sections)
    click.echo(f"report: {path}")
    sys.exit(1 if complaints else 0)
