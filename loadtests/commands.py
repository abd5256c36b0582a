"""`penstock bench compare`, `report` and `scenarios`: runs of several targets in turn; exit codes."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import httpx
import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadtests import launch, record, report, targets
from loadtests import scenario as scenarios
from loadtests.client import MakeClient, default_client
from loadtests.driver import Driver
from loadtests.launch import LaunchError
from loadtests.record import RunRecord
from loadtests.scenario import Scenario, ScenarioError
from loadtests.targets import PRESETS, Launch, Target, TargetError, build_body
from loadtests.workload import Ask, Prompts
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model
from scheduler.shared.user_cache import user_cache_folder

_PROBE_WORDS = (200, 1200)


@click.command("scenarios")
def list_scenarios() -> None:
    """List the scenarios and the servers that can be started."""
    for name in scenarios.shipped():
        click.echo(f"{name:18} {scenarios.load(name).description}")
    click.echo(f"\npresets for --launch: {', '.join(PRESETS)}")


@click.command()
@click.option(
    "--scenario", "names", required=True, multiple=True, help="A shipped scenario's name, a file, or all."
)
@click.option(
    "--target",
    "texts",
    multiple=True,
    metavar="NAME=...",
    help="NAME=URL of a running server, NAME=preset:PRESET to start one, or NAME=preset:penstock,commit=REV"
    " to start that commit's; may be repeated.",
)
@click.option("--launch", "presets", multiple=True, metavar="PRESET", help="Start a known server.")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Model folder for launched servers, or `embedded`; by default the bench model.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a value of the scenario."
)
@click.option("--rounds", default=1, show_default=True, help="Rounds: how often each target is measured.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("bench"), show_default=True
)
def compare(
    names: tuple[str, ...],
    texts: tuple[str, ...],
    presets: tuple[str, ...],
    model: Path | None,
    overrides: tuple[str, ...],
    rounds: int,
    out: Path,
) -> None:
    """Run scenarios against one or several targets, in turn: A B A B. Servers are restarted for each
    scenario."""
    every = scenarios.shipped() if "all" in names else names
    chosen = [scenarios.load(name, overrides) for name in every]
    if unknown := [name for name in presets if name not in PRESETS]:
        raise TargetError(f"--launch {unknown[0]}: there are {', '.join(PRESETS)}")
    choices: list[Target | Launch] = [Launch(name, PRESETS[name]) for name in presets]
    choices += [targets.parse(text, os.environ) for text in texts]
    if not choices:
        raise TargetError("name at least one --target or --launch")
    bench = launch.Bench(folder_of(model), prepare(user_cache_folder(os.environ)))
    for scenario in chosen:
        comparison = Comparison(scenario, default_client(scenario.bounds.request_seconds))
        trio.run(_compared, comparison, choices, bench, rounds)
        if not comparison.runs:
            click.echo("nothing was measured", err=True)
        else:
            out.mkdir(parents=True, exist_ok=True)
            record.save(out / f"{scenario.name}.json", comparison.runs)
            _reported(comparison.runs, out / f"{scenario.name}.html")
        if comparison.stopped:
            return


@click.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--html", type=click.Path(path_type=Path), default=Path("bench/report.html"), show_default=True)
def draw_report(files: tuple[Path, ...], html: Path) -> None:
    """Draw the runs of several files together."""
    html.parent.mkdir(parents=True, exist_ok=True)
    _reported([run for path in files for run in record.load(path)], html)


def folder_of(model: Path | None) -> Path:
    """Return the folder that `--model` means."""
    if model == Path("embedded"):
        return EMBEDDED_FOLDER
    return model or ensure_model(BENCH_13M, "bench-13m", user_cache_folder(os.environ))


def _reported(runs: list[RunRecord], html: Path) -> None:
    # Output that is not a terminal has no width, and four targets need more than 80 columns.
    report.print_report(runs, Console(width=None if sys.stdout.isatty() else 160))
    report.write_html(html, runs)
    click.echo(f"report: {html}")


async def _compared(
    comparison: Comparison, choices: Sequence[Target | Launch], bench: launch.Bench, rounds: int
) -> None:
    """The first Ctrl-C ends the measurement and keeps its results, the second kills it."""
    async with (
        launch.servers(choices, bench, lambda text: click.echo(text, err=True)) as ready,
        trio.open_nursery() as nursery,
    ):
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            nursery.start_soon(comparison.run, ready, rounds, nursery.cancel_scope)
            await anext(signals)
            comparison.interrupt()
            await anext(signals)
            raise KeyboardInterrupt


class Comparison:
    """One scenario against several targets, in turn, so that drift of the machine's speed affects all alike:
    A B C, A B C, ... Within a round all targets get the same prompts (one salt), and ratios are taken pair by
    pair. `runs` has those that have ended so far."""

    def __init__(self, scenario: Scenario, make_client: MakeClient) -> None:
        self._scenario = scenario
        self._make_client = make_client
        self._driver: Driver | None = None
        self._tokens_per_word: float | None = None
        self.stopped = False
        self.runs: list[RunRecord] = []

    def interrupt(self) -> None:
        """End the current run, also during its capacity probe; start no further one."""
        self.stopped = True
        if self._driver is not None:
            self._driver.interrupt()

    async def run(self, ready: Sequence[Target], rounds: int, over: trio.CancelScope | None = None) -> None:
        """Append to `runs`; cancel `over` at the end."""
        console = Console(stderr=True)
        with Live(Text(""), console=console, refresh_per_second=4, transient=True) as display:
            for round_ in range(rounds):
                salt = secrets.token_hex(4)
                for target in ready:
                    if not self.stopped:
                        await self._one(target, salt, round_, display)
        if over is not None:
            over.cancel()

    async def _one(self, target: Target, salt: str, round_: int, display: Live) -> None:
        if self._tokens_per_word is None:
            # Measured once, with the first target: all of them must get the same words.
            self._tokens_per_word = await tokens_per_word(target, self._make_client)
        driver = self._driver = Driver(self._scenario, target, self._make_client, salt, self._tokens_per_word)

        async def show() -> None:
            while True:
                await trio.sleep(0.25)
                display.update(Text(f"{self._scenario.name} → {target.name}  {driver.progress}"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(show)
            self.runs.append(await driver.run(round_))
            nursery.cancel_scope.cancel()


async def tokens_per_word(target: Target, make_client: MakeClient) -> float:
    """Measure how many tokens the target's tokenizer makes of one of our words, from two prompts of known
    length. Return 1.5 if the target reports no usage; prompt lengths are then approximate."""
    text = Prompts(secrets.token_hex(4), tokens_per_word=1.0)
    counts: list[int] = []
    for words in _PROBE_WORDS:
        message = {"role": "user", "content": text.text(words, "calibration")}
        wish = Ask(messages=(message,), max_tokens=1, exact=False, sampling={})
        body = {**build_body(wish, target), "stream": False}
        body.pop("stream_options", None)
        async with make_client() as client:
            try:
                response = await client.post(target.url_of(), json=body, headers=target.headers)
                counts.append(int(response.json()["usage"]["prompt_tokens"]))
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                # A target that is down or broken is a result of the run, not a reason to skip it.
                return 1.5
    return (counts[1] - counts[0]) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])


@contextmanager
def exit_codes() -> Iterator[None]:
    """Exit with the codes of `bench`: 0 measured; 1 a target did not start; 2 invalid options."""
    try:
        yield
    except (ScenarioError, TargetError, ValueError) as error:
        click.echo(f"penstock bench: {error}", err=True)
        sys.exit(2)
    except LaunchError as error:
        click.echo(f"penstock bench: {error}", err=True)
        sys.exit(1)
