"""`--engines join` and `--engines ray`: the port that engines on other machines connect to, and who has
joined.

Imported only where the option asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import trio

from api.admin.engines import rounded
from api.options.settings import ServeSettings
from scheduler.cluster.agent_messages import ServerAddress
from scheduler.cluster.cluster import RayCluster, agent_process
from scheduler.cluster.joined import JoinedEngines
from scheduler.engines.pool import Pool
from scheduler.errors import OptionError, StartupError
from scheduler.processes.listener import Listener
from scheduler.shared.hello import new_token
from scheduler.shared.user_cache import user_data_folder
from scheduler.telemetry.metrics import Metrics

_ALL_ADDRESSES = "0.0.0.0"
_PLAIN_TEXT = (
    "after the token it is plain text: prompts and answers can be read on the way; use Thunderbolt, a network"
    " that you trust or a VPN (--engine-address)"
)


@dataclass(frozen=True, slots=True)
class _MachineReport:
    """A machine, as operators see it. `living` is whether its engine is linked or, with Ray, whether Ray has
    its node; `places` are its units of the resource `mlx`; `engines` are the names of its engines."""

    machine: str
    address: str
    living: bool
    places: int
    engines: tuple[str, ...]


class RemoteEngines:
    """The machines whose engines serve a pool. They can join while `run` runs."""

    def __init__(
        self, settings: ServeSettings, pool: Pool, metrics: Metrics, environment: Mapping[str, str]
    ) -> None:
        """`environment` is that of Ray's agent process, without PENSTOCK_ options. Raise OptionError."""
        self._engines = JoinedEngines(pool, settings.rank_hosts)
        agent = agent_process(environment, settings.ray_address)
        self._ray = RayCluster(agent.run, metrics) if settings.ray else None
        self._token, self._token_file = join_token(settings, environment)
        self._listener = Listener(self._token, self._engines.arrived)
        self._addresses = settings.engine_addresses()
        self._port = settings.engine_port
        # Each machine prepares its own library.
        self._blas = "off" if settings.engine == "scripted" else settings.blas
        what = "one on each machine that joins"
        if settings.ray:
            where = "this machine's cluster" if settings.ray_address == "auto" else settings.ray_address
            what = f"one for each unit of the resource mlx in Ray, {where}"
        if settings.rank_hosts is not None:
            what = f"one of {settings.rank_hosts.group.ranks} ranks, on as many machines"
        click.echo(f"engines    {what} (--engines {settings.engines})")

    async def run(self) -> None:
        """Listen for engines until cancelled. Raise StartupError if that is impossible."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._engines.run)
            for address in self._addresses or (_ALL_ADDRESSES,):
                try:
                    self._port = await nursery.start(self._listener.serve, address, self._port)
                except OSError as error:
                    raise StartupError(
                        f"cannot listen for engines on {address}:{self._port}: {error}"
                    ) from error
            self._announce()
            if self._ray is not None:
                await self._ray.run(ServerAddress(self._addresses, self._port, self._token, self._blas))

    def report(self) -> dict[str, Any]:
        """Return the part `cluster` of `/v1/scheduler`."""
        ray = self._ray
        dials = ", ".join(self._addresses) or (None if ray is None else ray.address)
        body: dict[str, Any] = {
            "state": "listening" if ray is None else ray.state.value,
            "reason": None if ray is None else ray.reason,
            "dials": dials,
            "agent_restarts": 0 if ray is None else ray.restarts,
            "nodes": [rounded(asdict(machine)) for machine in self._machines()],
            "port": self._port,
        }
        return body

    def _machines(self) -> list[_MachineReport]:
        joined = {machine.machine: machine for machine in self._engines.machines()}
        reports = []
        for node in self._ray.nodes.values() if self._ray is not None else ():
            there = [joined.pop(name, None) for name in map(node.place, range(node.places))]
            engines = tuple(machine.engine for machine in there if machine is not None)
            reports.append(_MachineReport(node.machine, node.address, True, node.places, engines))
        # Engines that Ray did not place, and those whose node Ray has lost, go on.
        reports += [
            _MachineReport(name, machine.address, self._ray is None and machine.linked, 1, (machine.engine,))
            for name, machine in joined.items()
        ]
        return reports

    def _announce(self) -> None:
        if self._token_file is not None:
            address = self._addresses[0] if self._addresses else "THIS-MACHINE"
            click.echo(
                f"join       penstock engine --join {address}:{self._port} --token-file FILE, a copy of"
                f" {self._token_file}; {_PLAIN_TEXT}"
            )
            return
        where = ", ".join(self._addresses) or "the address that Ray has of this machine"
        click.echo(f"join       engines connect to {where}, port {self._port}, with a token; {_PLAIN_TEXT}")


def token_file(environment: Mapping[str, str]) -> Path:
    """Return where a server keeps the token that it has made for engines of other machines."""
    return user_data_folder(environment) / "join-token"


def join_token(settings: ServeSettings, environment: Mapping[str, str]) -> tuple[str, Path | None]:
    """Return the token that engines need, and the file that has it. With Ray the token is made for this run,
    without a file, unless the option names one. Raise OptionError, also if others can read the file."""
    if settings.ray and settings.join_token_file is None:
        return new_token(), None
    path = settings.join_token_file or token_file(environment)
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(file, "w", encoding="ascii") as made:
                made.write(f"{new_token()}\n")
        if path.stat().st_mode & 0o077:
            raise OptionError(
                f"--join-token-file: others can read {path}, and who has the token gets prompts:"
                f" chmod 600 {path}"
            )
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--join-token-file: {path}: {error}") from error
    if len(token) < 16:
        raise OptionError(f"--join-token-file: {path} has no token of at least 16 characters")
    return token, path
