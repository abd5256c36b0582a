"""`penstock bench scale`, `affinity` and `links`: the first two exit 1 if several engines give too little."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path

import click
import trio

from loadtests.chaos import report
from loadtests.pool import affinity, links, scale, server_alone
from scheduler.telemetry import logging

_OUT = click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)


def numbers(context: click.Context | None, parameter: click.Parameter | None, text: str) -> tuple[int, ...]:
    """Return positive whole numbers, separated by commas. Raise BadParameter."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r} is not a list of positive numbers, such as 1,2,4")
    return found


@click.command("scale")
@click.option("--engines", callback=numbers, default="1,2,4", show_default=True, help="Numbers of engines.")
@click.option(
    "--simulated",
    callback=numbers,
    default="1,4,8,16",
    show_default=True,
    help="Numbers of simulated engines behind the server alone.",
)
@click.option("--step-ms", default=250.0, show_default=True, help="A step of a scripted engine.")
@click.option("--slots", default=8, show_default=True, help="Slots of each engine.")
@click.option("--seconds", default=20.0, show_default=True, help="Time of each measurement.")
@click.option("--rounds", default=1, show_default=True, help="How often each number is measured, in turn.")
@_OUT
def scale_command(
    engines: tuple[int, ...],
    simulated: tuple[int, ...],
    step_ms: float,
    slots: int,
    seconds: float,
    rounds: int,
    out: Path,
) -> None:
    """Measure tokens/s by the number of engines, and what a streamed token costs the server."""
    logging.configure("console", "error")
    alone = server_alone.run(server_alone.ServerPlan(simulated, slots), _note)
    plan = scale.ScalePlan(engines, step_ms / 1000, slots, seconds, rounds=rounds)
    found = trio.run(scale.run, plan, _note)
    complaints = [*scale.complaints(found), *server_alone.complaints(alone)]
    _tell(out, "Scale", complaints, list(of_scale(found, alone)), {"servers": found, "front": alone})


@click.command("affinity")
@click.option("--engines", default=4, show_default=True)
@click.option("--sessions", default=16, show_default=True, help="Agents behind one system prompt.")
@click.option("--turns", default=6, show_default=True, help="Turns of each session.")
@click.option("--seed", default=0, show_default=True, help="Random seed of the prompts and the gaps.")
@_OUT
def affinity_command(engines: int, sessions: int, turns: int, seed: int, out: Path) -> None:
    """Compare placements by the share of agents' prompts that engines find cached (simulated engines)."""
    logging.configure("console", "error")
    plan = affinity.AffinityPlan(engines=engines, sessions=sessions, turns=turns, seed=seed)
    found = affinity.run(plan, _note)
    _tell(out, "Affinity", list(affinity.complaints(found)), list(of_affinity(found)), found)


@click.command("links")
@click.option(
    "--delays-ms", callback=numbers, default="1,10,50", show_default=True, help="Delays of the link, one way."
)
@click.option("--step-ms", default=20.0, show_default=True, help="A step of the scripted engine.")
@click.option("--slots", default=16, show_default=True)
@click.option("--seconds", default=8.0, show_default=True, help="Time of each measurement.")
@click.option("--rounds", default=3, show_default=True, help="How often each link is measured, in turn.")
@_OUT
def links_command(
    delays_ms: tuple[int, ...], step_ms: float, slots: int, seconds: float, rounds: int, out: Path
) -> None:
    """Measure what an engine's link costs the server, and what its delay costs the clients."""
    logging.configure("console", "error")
    plan = links.LinksPlan((0, *delays_ms), step_ms / 1000, slots, seconds, rounds)
    found = links.run(plan, _note)
    _tell(out, "Links", [], list(of_links(found)), found)


def of_links(found: Sequence[links.LinkCost]) -> Iterator[report.Section]:
    one = found[0]
    yield (
        f"Tokens/s, of a {one.link}'s; processor time of the server a token, of a {one.link}'s",
        [
            (
                each.link,
                f"{each.tokens_per_second:.1f}, {each.tokens_per_second / one.tokens_per_second:.3f};"
                f" {1e6 * each.cpu_seconds_per_token:.0f} µs,"
                f" {each.cpu_seconds_per_token / one.cpu_seconds_per_token:.2f}",
            )
            for each in found
        ],
    )


def of_scale(
    found: Sequence[scale.Scaled], alone: Sequence[server_alone.ServerCost]
) -> Iterator[report.Section]:
    yield (
        "Servers: tokens/s, of linear, processor time of the server a streamed token",
        [
            (
                _engines(one.engines),
                f"{one.tokens_per_second:.1f}, {one.linear:.3f}, {1e6 * one.cpu_seconds_per_token:.0f} µs",
            )
            for one in scale.scales(found)
        ],
    )
    yield (
        "The server alone, without HTTP: simulated tokens/s, processor time a token, tokens/s a core",
        [
            (
                _engines(one.engines, "simulated "),
                f"{one.tokens_per_second:.1f}, {1e6 * one.cpu_seconds_per_token:.0f} µs,"
                f" {1 / one.cpu_seconds_per_token:,.0f}",
            )
            for one in alone
        ],
    )


def of_affinity(found: Sequence[affinity.Shares]) -> Iterator[report.Section]:
    one = found[0]
    yield (
        "Cached share of prompt tokens, of one engine's; moves of sessions; median session",
        [
            (
                f"{each.engines} engines: {each.placement}" if each.engines > 1 else each.placement,
                f"{each.cached:.3f}, {each.cached / one.cached:.3f}; {each.moves};"
                f" {each.session_seconds:.1f} s",
            )
            for each in found
        ],
    )


def _engines(number: int, kind: str = "") -> str:
    return f"{number} {kind}engine{'s' if number > 1 else ''}"


def _note(text: str) -> None:
    click.echo(text, err=True)


def _tell(
    out: Path, title: str, complaints: list[str], sections: list[report.Section], measured: object
) -> None:
    click.echo(report.text(title, complaints, sections))
    path = out / f"{title.lower()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"complaints": complaints, "measured": measured}
    path.write_text(json.dumps(content, indent=1, default=_plain) + "\n", "utf-8")
    click.echo(f"measured: {path}")
    report.write_html(path.with_suffix(".html"), title, complaints, sections)
    click.echo(f"report:   {path.with_suffix('.html')}")
    sys.exit(1 if complaints else 0)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"not JSON: {value!r}")
