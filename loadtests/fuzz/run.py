"""The fuzz run: send thousands of bodies with boundary values, many at once, and check the server."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import click
import httpx
import trio

from api.cli.event_lines import EventLines
from loadtests.chaos.victim import Victim, victim
from loadtests.client import default_client
from loadtests.fuzz.bodies import Body, bodies
from loadtests.fuzz.prober import Prober, Silence
from loadtests.processes import resident_bytes

MODEL = "penstock-embedded"
_MOST_GROWTH = 1.5
"""Bound on the server's resident bytes after the run, as a multiple of those before it."""
_NOTE_EVERY, _IN_FLIGHT = 500, 32
_REQUEST_SECONDS, _CUT_SECONDS = 600.0, 0.1


@dataclass(frozen=True, slots=True)
class FuzzPlan:
    """Equal plans send the same bodies."""

    requests: int = 10_000
    seed: int = 0
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the server, as name=folder."""
    most_silent_seconds: float = 0.05
    """Bound on a stall of the event loop, without the machine's noise."""
    calm_seconds: float = 10.0
    """Time from the last answer to the reading of memory."""


@dataclass(slots=True)
class Fuzzed:
    """The result of a run."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    """5xx answers and streams that ended with an error, by code; requests without a whole answer, by what
    happened to the connection."""
    cut: int = 0
    """Requests of which a part was sent."""
    deaths: float = 0.0
    silence: Silence = field(default_factory=Silence)
    resident_bytes: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Resident bytes before and after, by process."""
    first: dict[str, Body] = field(default_factory=dict)
    """The first body with each of `wrong`."""

    def is_wrong(self, what: str, body: Body) -> None:
        self.wrong[what] += 1
        self.first.setdefault(what, body)

    def complaints(self, plan: FuzzPlan) -> Iterator[str]:
        if self.deaths:
            yield f"{self.deaths:g} engines died"
        for what, times in self.wrong.items():
            body = self.first[what]
            yield f"{times} answers failed as {what}; the first: POST {body.path} {json.dumps(body.body)}"
        if self.silence.seconds > plan.most_silent_seconds:
            yield f"the event loop stalled for {self.silence.seconds:.2f} s"
        if self.silence.failures:
            yield f"{len(self.silence.failures)} probes failed: {self.silence.failures[0]}"
        before, after = self.resident_bytes.get("server", (0, 0))
        if after > _MOST_GROWTH * before:
            yield f"the server holds {after / before:.2f} times the memory that it held before"
        if self.statuses[200] < sum(self.statuses.values()) / 3:
            yield "most bodies were refused: the run covers little"


async def run(plan: FuzzPlan, note: Callable[[str], None]) -> Fuzzed:
    """Run the plan. Raise LaunchError if the server does not start."""
    fuzzed = Fuzzed()
    adapters = [part for one in plan.adapters for part in ("--adapter", one)]
    async with victim(adapters, note) as server, default_client(_REQUEST_SECONDS)() as http:
        before, resident = await server.metrics(http), _resident(server)
        prober = Prober(urlsplit(server.url).port or 0, server.process.pid)
        try:
            await _send_all(plan, http, server.url, fuzzed, note)
            fuzzed.silence = await trio.to_thread.run_sync(prober.silence)
        finally:
            prober.close()
        await trio.sleep(plan.calm_seconds)
        name = "penstock_engine_deaths_total"
        fuzzed.deaths = (await server.metrics(http))[name] - before[name]
        now = _resident(server)
        fuzzed.resident_bytes = {one: (resident[one], now[one]) for one in resident.keys() & now.keys()}
    return fuzzed


def _resident(server: Victim) -> dict[str, float]:
    engine = server.engine_pids()[0]
    return {"server": resident_bytes(server.process.pid), "engine": resident_bytes(engine)}


async def _send_all(
    plan: FuzzPlan, http: httpx.AsyncClient, url: str, fuzzed: Fuzzed, note: Callable[[str], None]
) -> None:
    names = [one.partition("=")[0] for one in plan.adapters]
    to_send = enumerate(bodies(plan.requests, plan.seed, MODEL, names), 1)

    async def client() -> None:
        for number, body in to_send:
            await _send(http, url, body, fuzzed)
            if number % _NOTE_EVERY == 0:
                note(f"{number} sent: {dict(fuzzed.statuses)}, wrong {dict(fuzzed.wrong)}")

    async with trio.open_nursery() as nursery:
        for _ in range(_IN_FLIGHT):
            nursery.start_soon(client)


async def _send(http: httpx.AsyncClient, url: str, body: Body, fuzzed: Fuzzed) -> None:
    """Send one body. Raise nothing, whatever the server does."""
    if body.sent < 1:
        fuzzed.cut += 1
        with suppress(OSError, trio.BrokenResourceError):
            await _send_part(url, body)
        return
    try:
        response = await http.post(url + body.path, json=body.body)
    except httpx.HTTPError as error:
        fuzzed.is_wrong(type(error).__name__, body)
        return
    fuzzed.statuses[response.status_code] += 1
    if (code := _error_code(response)) is not None:
        fuzzed.is_wrong(code, body)


async def _send_part(url: str, body: Body) -> None:
    """Send a part of the body, and leave."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    text = json.dumps(body.body).encode()
    head = f"POST {body.path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(text)}\r\n\r\n"
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(head.encode() + text[: int(body.sent * len(text))])
        await trio.sleep(_CUT_SECONDS)


def _error_code(response: httpx.Response) -> str | None:
    """Return the code of a failed answer; None for a success or a refusal."""
    if response.status_code >= 500:
        return _code(response.content) or str(response.status_code)
    if "text/event-stream" not in response.headers.get("content-type", ""):
        return None
    codes = map(_code, EventLines().data(response.content))
    return next((code for code in codes if code is not None), None)


def _code(content: bytes) -> str | None:
    """Return the error's code, or its type in Anthropic's dialect."""
    try:
        parsed: Any = json.loads(content)
    except ValueError:
        return None
    response = parsed.get("response")
    error = parsed.get("error") or (response.get("error") if isinstance(response, dict) else None)
    return None if not isinstance(error, dict) else str(error.get("code") or error.get("type"))


@click.command()
@click.option("--requests", default=10_000, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Random seed of the bodies.")
@click.option("--adapter", "adapters", multiple=True, help="LoRA adapter as name=folder; several times.")
def fuzz(requests: int, seed: int, adapters: tuple[str, ...]) -> None:
    """Send bodies with boundary values in every number, many at once: no engine may die, no answer may
    fail."""
    plan = FuzzPlan(requests, seed, adapters=adapters)
    found = trio.run(run, plan, lambda text: click.echo(text, err=True))
    complaints = list(found.complaints(plan))
    click.echo("\n".join(complaints) or "no engine died, no answer failed, and the event loop never stalled")
    click.echo(f"statuses {dict(found.statuses)}, cut {found.cut}, resident bytes {found.resident_bytes}")
    seconds, with_noise = found.silence.seconds, found.silence.wall_seconds
    click.echo(f"longest stall {seconds:.3f} s ({with_noise:.3f} with the machine's noise)")
    sys.exit(1 if complaints else 0)
