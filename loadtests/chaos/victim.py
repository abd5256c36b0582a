"""A Penstock server under test, with access to its engine processes."""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

from loadtests.chaos.saboteur.sitecustomize import BEGUN, FLOOR_VARIABLE, ORDER_VARIABLE
from loadtests.launch import ROOT, free_port, process, wait_ready
from loadtests.processes import engines

_SABOTEUR = Path(__file__).with_name("saboteur")
_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Victim:
    """A running server. `order`: the file that an engine reads."""

    process: trio.Process
    url: str
    order: Path

    def slow_down(self, order: str) -> None:
        """Let the next step that the order means be slow, or hang."""
        self.withdraw()
        written = self.order.with_suffix(".new")
        written.write_text(order)
        written.rename(self.order)

    def slowed(self) -> bool:
        """Return whether the ordered step has begun, and has not ended unless its engine died."""
        return self.order.with_suffix(BEGUN).exists()

    def withdraw(self) -> None:
        """Take back the order, and what is left of it."""
        for path in (self.order, self.order.with_suffix(BEGUN)):
            path.unlink(missing_ok=True)

    def engine_pids(self) -> list[int]:
        """Return the server's children: its engine, or the one that is loading."""
        return engines(self.process.pid)

    async def ready(self, http: httpx.AsyncClient) -> bool:
        """Return whether its one engine can take requests."""
        return bool(self.engine_pids()) and (await http.get(f"{self.url}/ready")).status_code == 200

    async def holdings(self, http: httpx.AsyncClient) -> dict[str, float]:
        """Return what is held for requests, by name; nothing once all have ended or left. While the engine is
        away that is unknown."""
        metrics = await self.metrics(http)
        held = {name: metrics[key] for name, key in _HOLDINGS.items()}
        cache = await http.get(f"{self.url}/v1/cache")
        held["leases"] = cache.json()["leases"] if cache.is_success else math.nan
        return {name: value for name, value in held.items() if value}

    async def metrics(self, http: httpx.AsyncClient) -> dict[str, float]:
        return samples((await http.get(f"{self.url}/metrics")).text)


_HOLDINGS = {
    "requests in the queue": "penstock_queued_requests",
    "requests in the engine": "penstock_engine_requests",
    "slots": "penstock_running_slots",
    "bytes of rows": "penstock_kv_bytes",
}
_WHOSE = re.compile(r'(?<=[{,])(?:model|engine)="[^"]*"(?:,|(?=\}))')


def samples(exposition: str) -> dict[str, float]:
    """Return samples by name with labels, as Prometheus writes them, without the model and the engine."""
    found: dict[str, float] = {}
    for line in exposition.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            found[_WHOSE.sub("", name).replace(",}", "}").removesuffix("{}")] = float(value)
    return found


@asynccontextmanager
async def victim(
    arguments: Sequence[str], note: Callable[[str], None], floor_seconds: float | None = None
) -> AsyncIterator[Victim]:
    """Run `penstock serve` with these arguments during the block, with the embedded model. Raise LaunchError
    if it does not start. `floor_seconds`: how long any step may take, in place of half a minute."""
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder:
        port, log, order = free_port(), Path(folder, "log"), Path(folder, "order")
        # Without the options of the machine's owner, which may name a model.
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        # The saboteur first, then this checkout, in which the engine may not be installed.
        given = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_SABOTEUR), str(ROOT), given)))
        variables |= {"PYTHONUNBUFFERED": "1", ORDER_VARIABLE: str(order)}
        if floor_seconds is not None:
            variables[FLOOR_VARIABLE] = str(floor_seconds)
        options = ("--host", "127.0.0.1", "--port", str(port), "--model", "embedded", *arguments)
        command = [sys.executable, "-m", "api", "serve", *options]
        async with process("victim", command, variables, log, note) as running:
            url = f"http://127.0.0.1:{port}"
            await wait_ready("victim", running, f"{url}/ready", log, _START_SECONDS)
            yield Victim(running, url, order)
