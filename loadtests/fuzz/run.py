"""The fuzz run: send thousands of bodies with boundary values, many at once, and check the server."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import trio

from api.cli.event_lines import EventLines
from loadtests.chaos.levels import of_process
from loadtests.chaos.victim import Victim, victim
from loadtests.fuzz.bodies import Body, bodies
from loadtests.fuzz.prober import Prober, Silence

MODEL = "penstock-embedded"
_MOST_GROWTH = 1.5
"""Bound on the server's resident bytes after the run, as a multiple of those before it."""
_NOTE_EVERY = 500
_REQUEST_SECONDS = 600.0
_CUT_SECONDS = 0.1
_AROUND_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class FuzzPlan:
    """Equal plans send the same bodies. After `seconds` nothing more is sent."""

    requests: int = 5000
    seed: int = 0
    in_flight: int = 32
    seconds: float = 1800.0
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the server, as name=folder."""
    most_silent_seconds: float = 0.05
    """Bound on a stall of the event loop, without the machine's noise."""
    calm_seconds: float = 10.0
    """Time from the last answer to the reading of memory."""


@dataclass(slots=True)
class Fuzzed:
    """The result of a run."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """5xx answers and streams that ended with an error, by code."""
    cut: int = 0
    """Requests of which a part was sent."""
    lost: Counter[str] = field(default_factory=Counter)
    """Requests without a whole answer, by what happened to the connection."""
    deaths: float = 0.0
    silence: Silence = field(default_factory=Silence)
    spans: list[tuple[float, float, int]] = field(default_factory=list)
    """When each body was sent and when it was answered, by `time.monotonic`, and its number."""
    resident_bytes: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Resident bytes before and after, by process; empty if the system does not report it."""
    first_error: dict[str, Body] = field(default_factory=dict)
    """The first body with each of `errors` and `lost`."""

    def around_stall(self) -> list[int]:
        """Return the numbers of the bodies that were sent or answered at the longest stall."""
        first, last = self.silence.began_at - _AROUND_SECONDS, self.silence.began_at + self.silence.seconds
        return [
            number
            for sent, answered, number in self.spans
            if first <= sent <= last or first <= answered <= last
        ]

    def complaints(self, plan: FuzzPlan) -> Iterator[str]:
        if self.deaths:
            yield f"{self.deaths:g} engines died"
        for code, times in self.errors.items():
            yield f"{times} answers failed as {code}"
        for what, times in self.lost.items():
            yield f"{times} answers were lost: {what}"
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
    limits = httpx.Limits(max_connections=None)
    async with (
        victim([part for one in plan.adapters for part in ("--adapter", one)]) as server,
        httpx.AsyncClient(timeout=_REQUEST_SECONDS, limits=limits, trust_env=False) as http,
    ):
        await _ready(http, server.url)
        before, resident = await server.metrics(http), _resident(server)
        prober = Prober(urlsplit(server.url).port or 0, server.process.pid)
        try:
            began = trio.current_time()
            await _send_all(plan, http, server.url, fuzzed, note)
            fuzzed.seconds = trio.current_time() - began
            fuzzed.silence = await trio.to_thread.run_sync(prober.silence)
        finally:
            prober.close()
        await trio.sleep(plan.calm_seconds)
        after = await server.metrics(http)
        name = "penstock_engine_deaths_total"
        fuzzed.deaths = after[name] - before[name]
        fuzzed.resident_bytes = {
            process: (resident[process], now)
            for process, now in _resident(server).items()
            if process in resident
        }
    return fuzzed


async def _ready(http: httpx.AsyncClient, url: str) -> None:
    while (await http.get(f"{url}/ready")).status_code != 200:  # noqa: ASYNC110 (another process)
        await trio.sleep(0.1)


def _resident(server: Victim) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pid in (("server", server.process.pid), ("engine", server.engine_pid())):
        if pid is not None:
            with suppress(OSError):
                found[name] = of_process(pid)["resident bytes"]
    return found


async def _send_all(
    plan: FuzzPlan, http: httpx.AsyncClient, url: str, fuzzed: Fuzzed, note: Callable[[str], None]
) -> None:
    names = [one.partition("=")[0] for one in plan.adapters]
    to_send = enumerate(bodies(plan.requests, plan.seed, MODEL, names))
    give_up_at = trio.current_time() + plan.seconds

    async def client() -> None:
        for number, body in to_send:
            if trio.current_time() > give_up_at:
                return
            sent_at = time.monotonic()
            await _send(http, url, body, fuzzed)
            fuzzed.spans.append((sent_at, time.monotonic(), number))
            if number % _NOTE_EVERY == _NOTE_EVERY - 1:
                note(f"{number + 1} sent: {dict(fuzzed.statuses)}, errors {dict(fuzzed.errors)}")

    async with trio.open_nursery() as nursery:
        for _ in range(plan.in_flight):
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
        what = type(error).__name__
        fuzzed.lost[what] += 1
        fuzzed.first_error.setdefault(what, body)
        return
    fuzzed.statuses[response.status_code] += 1
    if (code := _error_code(response)) is not None:
        fuzzed.errors[code] += 1
        fuzzed.first_error.setdefault(code, body)


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
        parsed = json.loads(content)
    except ValueError:
        return None
    response = parsed.get("response")
    error = parsed.get("error") or (response.get("error") if isinstance(response, dict) else None)
    return None if not isinstance(error, dict) else str(error.get("code") or error.get("type"))
