"""Let sessions come and go for minutes, and watch the server, its engine, and the caches that report a
size."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import httpx
import trio

from loadtests.cache_soak.plateau import complaints, judged
from loadtests.cache_soak.visits import Guests, Visits
from loadtests.chaos.levels import Level, of_process
from loadtests.chaos.victim import Victim, victim
from loadtests.conversations import words_per_token_of

CACHES = {
    "token ids": "penstock_prompt_pieces_bytes",
    "prefixes": "penstock_prefix_bytes",
}
"""Metrics of the caches, in bytes."""
_LEAST = {"sessions": 66_000.0, "responses": 1200.0, "schemas": 600.0}
"""Counts that exceed what the server remembers: the last engines of 65,536 sessions (4,096 sessions' gaps),
1,024 stored responses, 512 checked schemas."""
_COMPUTED_SESSIONS = 1000.0
"""Sessions that suffice with a model, where each takes its time. The gaps of some thousand more, 2 kB each,
would be remembered after them."""
_KV_CACHE_BYTES = 64 << 20
_SAMPLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CacheSoakPlan:
    seconds: float
    clients: int
    engine: str
    guests: Guests
    kv_cache_bytes: int = _KV_CACHE_BYTES

    @property
    def arguments(self) -> tuple[str, ...]:
        chosen = ("--engine", "scripted") if self.engine == "scripted" else ()
        return (
            *(*chosen, "--log-level", "warning", "--tenant-header", "x-soak-tenant"),
            *("--kv-cache-bytes", str(self.kv_cache_bytes), "--max-slots", "4"),
        )

    @property
    def least(self) -> dict[str, float]:
        if self.engine == "scripted":
            return {name: least for name, least in _LEAST.items() if name != "schemas"}
        return _LEAST | {"sessions": _COMPUTED_SESSIONS}


@dataclass(slots=True)
class CacheSoak:
    """What a soak found. `samples`: values by name, with "seconds" since the start."""

    plan: CacheSoakPlan
    samples: list[dict[str, float]] = field(default_factory=list)

    def _values(self) -> list[dict[str, float]]:
        return [{name: value for name, value in one.items() if name != "seconds"} for one in self.samples]

    def complaints(self) -> Iterator[str]:
        return complaints(self._values(), CACHES, self.plan.least)

    def levels(self) -> list[Level]:
        return judged(self._values(), CACHES, self.plan.least)


async def run(plan: CacheSoakPlan, note: Callable[[str], None]) -> CacheSoak:
    """Carry out the plan on a new server. Raise LaunchError if it does not start."""
    soak = CacheSoak(plan)
    async with (
        victim(plan.arguments, sabotage=False) as server,
        httpx.AsyncClient(timeout=600.0, limits=httpx.Limits(max_connections=None), trust_env=False) as http,
    ):
        visits = Visits(http, server.url, plan.guests, await words_per_token_of(http, server.url))
        with trio.move_on_after(plan.seconds):
            async with trio.open_nursery() as nursery:
                numbers = itertools.count()
                for _ in range(plan.clients):
                    nursery.start_soon(_client, visits, numbers)
                await _watch(server, http, visits, soak, note)
    return soak


async def _client(visits: Visits, numbers: Iterator[int]) -> None:
    for number in numbers:
        await visits.visit(number)


async def _watch(
    server: Victim, http: httpx.AsyncClient, visits: Visits, soak: CacheSoak, note: Callable[[str], None]
) -> None:
    started = trio.current_time()
    while True:
        metrics = await server.metrics(http)
        report = (await http.get(f"{server.url}/v1/cache", params={"top": 3, "text_tokens": 8})).json()
        sample = {name: metrics[metric] for name, metric in CACHES.items()}
        sample |= {"held prefixes": report["held_bytes"], "pins": len(report["pins"])}
        sample |= {"prefix nodes": report["nodes"], "ids of prefixes": report["key_bytes"]}
        sample["requests in the server"] = (
            metrics["penstock_queued_requests"] + metrics["penstock_engine_requests"]
        )
        for name, pid in (("server", server.process.pid), ("engine", server.engine_pid())):
            if pid is not None:
                sample |= {f"{name}: {kind}": value for kind, value in of_process(pid).items()}
        sample |= {name: float(visits.counts[name]) for name in soak.plan.least}
        soak.samples.append({"seconds": trio.current_time() - started, **sample})
        note(", ".join(f"{name} {value:,.0f}" for name, value in soak.samples[-1].items()))
        await trio.sleep(_SAMPLE_SECONDS)


def lines(soak: CacheSoak) -> Iterator[str]:
    found, last = soak.levels(), soak.samples[-1]
    sessions, responses = last["sessions"], last["responses"]
    yield f"{sessions:,.0f} sessions and {responses:,.0f} stored responses in {last['seconds']:.0f} s"
    if found:
        yield "once all caches were full, mean of the first third and of the last (highest):"
    for level in found:
        yield f"  {level.name}: {level.first:,.0f} → {level.last:,.0f} ({level.highest:,.0f})"
    for complaint in soak.complaints():
        yield f"COMPLAINT: {complaint}"


@click.command("cache-soak")
@click.option("--minutes", default=15.0, show_default=True)
@click.option("--clients", default=2, show_default=True, help="Sessions at a time.")
@click.option("--engine", type=click.Choice(["scripted", "mlx"]), default="scripted", show_default=True)
@click.option("--tokens", default=100_000, show_default=True, help="Tokens of a long session's prompt.")
@click.option(
    "--computed-tokens",
    default=1000,
    show_default=True,
    help="The part of --tokens that --engine mlx computes.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)
def cache_soak(
    minutes: float, clients: int, engine: str, tokens: int, computed_tokens: int, out: Path
) -> None:
    """Let sessions come and go: exit 1 if a cache or a process grows once all caches are full."""
    scripted = engine == "scripted"
    guests = Guests(tokens, tokens, schemas=False)
    if not scripted:
        guests = Guests(tokens, computed_tokens, schemas=True, stays_every=1, long_every=8)
    soak = trio.run(
        run, CacheSoakPlan(60 * minutes, clients, engine, guests), lambda text: click.echo(text, err=True)
    )
    for line in lines(soak):
        click.echo(line)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"cache-soak-{engine}.json").write_text(json.dumps(asdict(soak), indent=2) + os.linesep)
    sys.exit(int(any(True for _ in soak.complaints())))
