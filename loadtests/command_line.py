"""Runs, comparisons, searches, reports and verdicts from a terminal; the exit codes of `penstock bench`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadtests import html_report, launch, record, report, targets, verdict
from loadtests import scenario as scenarios
from loadtests.canvas import PlotsMissing
from loadtests.compare import Comparison, interruptible
from loadtests.driver import Progress, default_client
from loadtests.launch import LaunchError
from loadtests.measure import agents_sustained, measure
from loadtests.presets import PRESETS
from loadtests.record import RunRecord
from loadtests.scenario import Scenario, ScenarioError
from loadtests.targets import Launch, Target, TargetError
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder

_TARGET_HELP = "NAME=URL of a running server, or NAME=preset:PRESET to start one; may be repeated."
_MODEL_HELP = "Model folder for launched servers, or `embedded`; by default the bench model."


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that sends requests."""
    for option in (
        click.option("--target", "texts", multiple=True, metavar="NAME=...", help=_TARGET_HELP),
        click.option("--launch", "presets", multiple=True, metavar="PRESET", help="Start a known server."),
        click.option("--model", type=click.Path(path_type=Path), help=_MODEL_HELP),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="PATH=VALUE",
            help="Override a value of the scenario.",
        ),
        click.option(
            "--token-scale", default=1.0, show_default=True, help="Factor on all lengths in tokens."
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("bench"),
            show_default=True,
        ),
    ):
        command = option(command)
    return command


@click.command("scenarios")
def list_scenarios() -> None:
    """List the scenarios and the servers that can be started."""
    for name in scenarios.shipped():
        click.echo(f"{name:18} {scenarios.load(name).description}")
    click.echo(f"\npresets for --launch: {', '.join(PRESETS)}")


@click.command()
@click.option(
    "--scenario",
    "names",
    required=True,
    multiple=True,
    help="A shipped scenario's name, or a file; may be repeated. all: every shipped one but soak.",
)
@_common
@click.option("--without", metavar="POPULATION", help="Leave out this population.")
@click.option("--rounds", default=1, show_default=True, help="Rounds: how often each target is measured.")
@click.option(
    "--baseline", type=click.Path(path_type=Path), help="Compare with this baseline; exit 1 on a regression."
)
def compare(
    names: tuple[str, ...],
    texts: tuple[str, ...],
    presets: tuple[str, ...],
    model: Path | None,
    overrides: tuple[str, ...],
    token_scale: float,
    out: Path,
    without: str | None,
    rounds: int,
    baseline: Path | None,
) -> None:
    """Run scenarios against one or several targets, in turn: A B A B. Servers are restarted for each
    scenario."""
    html_report.check()
    stored = None if baseline is None else verdict.load(baseline)
    every = [name for name in scenarios.shipped() if name != "soak"]
    chosen = [
        scenarios.load(name, overrides, token_scale)
        for given in names
        for name in (every if given == "all" else [given])
    ]
    if without is not None:
        chosen = [one.without(without) for one in chosen]
    choices = _choices(texts, presets)
    runs: list[RunRecord] = []
    for scenario in chosen:
        comparison = _compare(scenario, choices, model, rounds)
        runs += comparison.runs
        _write(comparison.runs, out, scenario.name)
        if comparison.stopped:
            break
    if len(chosen) > 1:
        html_report.write(out / "all.html", runs, _machine())
        click.echo(f"all of them: {out / 'all.html'}")
    if stored is not None:
        sys.exit(_judge(runs, stored))


def _compare(
    scenario: Scenario, choices: list[Target | Launch], model: Path | None, rounds: int
) -> Comparison:
    comparison, live = _comparison(scenario)

    async def measured(ready: Sequence[Target]) -> None:
        await interruptible(comparison, lambda: comparison.run(ready, rounds))

    with live:
        trio.run(_with_servers, choices, model, measured)
    return comparison


@click.command()
@click.option("--scenario", default="agents", show_default=True, help="A shipped scenario's name, or a file.")
@_common
@click.option(
    "--population", default="agents", show_default=True, help="The population whose clients are counted."
)
@click.option("--most", default=64, show_default=True, help="Largest number of agents to try.")
@click.option("--attainment", default=0.95, show_default=True, help="Share of requests within the SLO.")
def sustain(
    scenario: str,
    texts: tuple[str, ...],
    presets: tuple[str, ...],
    model: Path | None,
    overrides: tuple[str, ...],
    token_scale: float,
    out: Path,
    population: str,
    most: int,
    attainment: float,
) -> None:
    """Search for the number of agents that each target sustains within the scenario's SLO."""
    runs: list[RunRecord] = []

    async def attained(target: Target, live: Live, agents: int) -> float:
        sized = (f"{population}.arrivals.clients={agents}", f"{population}.sessions={agents}")
        chosen = scenarios.load(scenario, (*overrides, *sized), token_scale)
        comparison, _ = _comparison(chosen, live)
        await interruptible(comparison, lambda: comparison.run([target], 1))
        runs.extend(comparison.runs)
        share = measure(comparison.runs[0]).value("slo_attainment") or 0.0
        live.console.print(f"{target.name}: {agents} agents, {share:.0%} within the SLO")
        return share

    async def searched(ready: Sequence[Target]) -> None:
        for target in ready:
            found = await trio.to_thread.run_sync(agents_sustained, _asking(target), 1, most, attainment)
            live.console.print(f"{target.name} sustains {found} agents")

    def _asking(target: Target) -> Callable[[int], float]:
        # The search is synchronous and runs in a thread; its requests run here.
        return lambda agents: trio.from_thread.run(attained, target, live, agents)

    _, live = _comparison(scenarios.load(scenario, overrides, token_scale))
    with live:
        trio.run(_with_servers, _choices(texts, presets), model, searched)
    _write(runs, out, f"sustain-{scenarios.load(scenario).name}", with_report=False)


@click.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--html", type=click.Path(path_type=Path), default=Path("bench/report.html"), show_default=True)
@click.option("--formulas", is_flag=True, help="Print the formula of each figure.")
def draw_report(files: tuple[Path, ...], html: Path, formulas: bool) -> None:
    """Draw the runs of several files together."""
    runs = [run for path in files for run in record.load(path)]
    report.print_report(runs, formulas=formulas)
    html_report.check()
    html.parent.mkdir(parents=True, exist_ok=True)
    html_report.write(html, runs, _machine())
    click.echo(f"report: {html}")


@click.command("verdict")
@click.argument("runs_file", type=click.Path(path_type=Path, exists=True))
@click.option("--baseline", type=click.Path(path_type=Path), required=True)
@click.option("--write", is_flag=True, help="Write a baseline from these runs instead.")
def judge(runs_file: Path, baseline: Path, write: bool) -> None:
    """Compare with a stored baseline; exit 1 on a regression."""
    runs = record.load(runs_file)
    if write:
        verdict.save(baseline, verdict.baseline_of(runs))
        click.echo(f"baseline: {baseline}")
        return
    sys.exit(_judge(runs, verdict.load(baseline)))


def _choices(texts: Sequence[str], presets: Sequence[str]) -> list[Target | Launch]:
    for name in presets:
        if name not in PRESETS:
            raise TargetError(f"--launch {name}: there are {', '.join(PRESETS)}")
    choices = [
        *(Launch(name, PRESETS[name]) for name in presets),
        *(targets.parse(text, os.environ) for text in texts),
    ]
    if not choices:
        raise TargetError("name at least one --target or --launch")
    return choices


async def _with_servers(choices: list[Target | Launch], model: Path | None, body: Callable[..., Any]) -> None:
    cache = user_cache_folder(os.environ)
    if model is None:
        model = ensure_model(BENCH_13M, "bench-13m", cache)
    elif model == Path("embedded"):
        model = EMBEDDED_FOLDER
    common = launch.Bench(model=model, blas=prepare(cache))
    await launch.with_servers(choices, common, body, note=lambda text: click.echo(text, err=True))


def _comparison(scenario: Scenario, live: Live | None = None) -> tuple[Comparison, Live]:
    display = live or Live(Text(""), console=Console(stderr=True), refresh_per_second=4, transient=True)

    def show(name: str, progress: Progress) -> None:
        display.update(
            Text(
                f"{scenario.name} → {name}  {progress.elapsed_seconds:.1f} of {scenario.bounds.seconds:g} s"
                f"  {progress.sent} sent, {progress.in_flight} in flight, {progress.finished} finished,"
                f" {progress.failed} failed, {progress.deltas} deltas"
            )
        )

    return Comparison(scenario, default_client(scenario.bounds.request_seconds), show), display


def _write(runs: list[RunRecord], out: Path, name: str, with_report: bool = True) -> None:
    if not runs:
        click.echo("nothing was measured", err=True)
        return
    out.mkdir(parents=True, exist_ok=True)
    record.save(out / f"{name}.json", runs)
    click.echo(f"records: {out / name}.json")
    if with_report:
        # Output that is not a terminal has no width, and four targets need more than 80 columns.
        report.print_report(runs, Console(width=None if sys.stdout.isatty() else 160))
        html_report.write(out / f"{name}.html", runs, _machine())
        click.echo(f"report:  {out / name}.html")


def _judge(runs: list[RunRecord], baseline: verdict.Baseline) -> int:
    found = verdict.judge(runs, baseline)
    Console().print(report.verdict_report(found))
    return found.exit_code


def _machine() -> str:
    import platform

    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"


@contextmanager
def exit_codes() -> Iterator[None]:
    """Exit with the codes of `bench`: 0 measured; 1 regression, or a target did not start; 2 invalid
    options."""
    try:
        yield
    except (ScenarioError, TargetError, ValueError) as error:
        click.echo(f"penstock bench: {error}", err=True)
        sys.exit(2)
    except (LaunchError, PlotsMissing) as error:
        click.echo(f"penstock bench: {error}", err=True)
        sys.exit(1)
