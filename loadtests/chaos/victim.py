"""A Penstock server under test, with access to its engine process."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

from loadtests.chaos.saboteur.sitecustomize import (
    BEGUN,
    FLOOR_VARIABLE,
    LIVE_VARIABLE,
    ORDER_VARIABLE,
)
from loadtests.chaos.slow_steps import SlowStep
from loadtests.launch import LaunchError, tail
from loadtests.processes import engines

_SABOTEUR = Path(__file__).with_name("saboteur")
_ROOT = Path(__file__).parents[2]
_START_SECONDS = 300.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Victim:
    """A running server. `log` has the output of both processes."""

    process: trio.Process
    url: str
    log: Path
    live: Path
    order: Path

    def slow_down(self, step: SlowStep) -> None:
        """Let the next step of this kind be slow, or hang."""
        self.withdraw()
        written = self.order.with_suffix(".new")
        written.write_text(step.order)
        written.rename(self.order)

    def slowed(self) -> bool:
        """Return whether the ordered step has begun, and has not ended unless its engine died."""
        return self.order.with_suffix(BEGUN).exists()

    def withdraw(self) -> None:
        """Take back the order, and what is left of it."""
        for path in (self.order, self.order.with_suffix(BEGUN)):
            path.unlink(missing_ok=True)

    def mlx_bytes(self) -> float | None:
        """Return the bytes of the engine's live buffers within the last second, or None before the first
        report."""
        try:
            return float(self.live.read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def engine_pids(self) -> list[int]:
        """Return the server's children: its engines, also those that are loading."""
        return engines(self.process.pid)

    async def ready_engines(self, http: httpx.AsyncClient) -> int:
        """Return how many of its engines can take requests."""
        report = (await http.get(f"{self.url}/v1/scheduler")).json()
        return sum(engine["condition"] == "ready" for engine in report["engines"])

    async def holdings(self, http: httpx.AsyncClient) -> dict[str, float]:
        """Return what is held for requests, by name; nothing once all have ended or left. While the engine is
        away that is unknown."""
        metrics = await self.metrics(http)
        held = {name: metrics[key] for name, key in _HOLDINGS.items()}
        cache = await http.get(f"{self.url}/v1/cache")
        held["leases"] = cache.json()["leases"] if cache.is_success else math.nan
        return {name: value for name, value in held.items() if value}

    async def ready(self, http: httpx.AsyncClient) -> bool:
        """Return whether its one engine can take requests."""
        return self.engine_pid() is not None and (await http.get(f"{self.url}/ready")).status_code == 200

    def engine_pid(self) -> int | None:
        """Return the server's one child, or None."""
        found = engines(self.process.pid)
        return found[0] if found else None

    async def metrics(
        self, http: httpx.AsyncClient, combine: Callable[[Iterable[float]], float] = sum
    ) -> dict[str, float]:
        """Return the server's samples over all its engines: see `over_engines`."""
        return over_engines((await http.get(f"{self.url}/metrics")).text, combine)


_HOLDINGS = {
    "requests in the queue": "penstock_queued_requests",
    "requests in the engine": "penstock_engine_requests",
    "slots": "penstock_running_slots",
    "bytes of rows": "penstock_kv_bytes",
}
_WHOSE = re.compile(r'(?<=[{,])(?:model|engine)="[^"]*"(?:,|(?=\}))')


def over_engines(exposition: str, combine: Callable[[Iterable[float]], float] = sum) -> dict[str, float]:
    """Return samples by name with labels, as Prometheus writes them. Those that differ only in their model or
    engine are one sample without these labels: their sum, or what `combine` makes of them."""
    found: dict[str, list[float]] = {}
    for line in exposition.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            name = _WHOSE.sub("", name).replace(",}", "}").removesuffix("{}")
            found.setdefault(name, []).append(float(value))
    return {name: combine(values) for name, values in found.items()}


@asynccontextmanager
async def victim(
    arguments: Sequence[str],
    *,
    sabotage: bool = True,
    floor_seconds: float | None = None,
) -> AsyncIterator[Victim]:
    """Start `penstock serve` with these arguments, with the embedded model if they name none, and yield when
    it is ready; stop it after the block. Raise LaunchError if it does not start. `sabotage`: whether its
    engines can be made to fail from inside; `floor_seconds`: how long any step may take, in place of half a
    minute."""
    model = () if "--model" in arguments else ("--model", "embedded")
    options = ("--port", "0", "--log-format", "json", *model, *arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder:
        log, live, order = (Path(folder) / name for name in ("log", "live", "order"))
        variables = {LIVE_VARIABLE: str(live), ORDER_VARIABLE: str(order)} if sabotage else {}
        if floor_seconds is not None:
            variables[FLOOR_VARIABLE] = str(floor_seconds)
        with log.open("wb") as output:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "api", "serve", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONPATH": python_path(sabotage),
                    **variables,
                },
                start_new_session=True,
            )
        try:
            yield Victim(process, await _address(process, log), log, live, order)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _STOP_SECONDS):
                process.terminate()
                await process.wait()
            if process.returncode is None:
                process.kill()


def python_path(sabotage: bool) -> str:
    """Return the saboteur first, then this checkout, in which the engine may not be installed."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([str(_SABOTEUR)] if sabotage else []), str(_ROOT), *([given] if given else [])])


async def _address(process: trio.Process, log: Path) -> str:
    with trio.move_on_after(_START_SECONDS):
        while process.poll() is None:
            if found := _listening(log):
                return found
            await trio.sleep(_POLL_SECONDS)
    raise LaunchError(f"the server did not start:\n{tail(log)}")


def _listening(log: Path) -> str | None:
    found = re.search(r"^listening +(http://\S+)", log.read_text("utf-8", "replace"), re.MULTILINE)
    return found[1] if found else None
