"""`--engines ray`: the port that engines on other machines connect to, and the cluster that they are in.

Imported only where the option asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click
import trio

from api.engines import rounded
from api.settings import ServeSettings
from scheduler.cluster.agent_process import AgentProcess
from scheduler.cluster.cluster import Cluster, RankStarter
from scheduler.cluster.gang_launcher import GangLauncher
from scheduler.cluster.order import HostStarter
from scheduler.cluster.remote_launcher import RemoteLauncher
from scheduler.config import SupervisionConfig
from scheduler.engines.pool import Pool
from scheduler.errors import StartupError
from scheduler.link.listener import Listener
from scheduler.link.process import EngineLauncher
from scheduler.telemetry.metrics import Metrics

_ALL_ADDRESSES = "0.0.0.0"


class RayEngines:
    """The machines that serve a pool. `run` must be running."""

    def __init__(
        self, settings: ServeSettings, pool: Pool, metrics: Metrics, environment: Mapping[str, str]
    ) -> None:
        """`environment`: of the agent, without options."""
        self._listener = Listener()
        self._hosts = settings.rank_hosts
        self._addresses = settings.engine_addresses()
        self._port = settings.engine_port
        # Each machine makes its own.
        self._blas = "off" if settings.engine == "scripted" else settings.blas
        self._stop_seconds = SupervisionConfig().stop_seconds
        self._cluster = Cluster(
            AgentProcess(environment, settings.ray_address),
            pool,
            self._launcher,
            metrics,
            self._addresses,
            self._hosts,
        )
        where = "this machine's cluster" if settings.ray_address == "auto" else settings.ray_address
        what = "one for each unit of the resource mlx"
        if self._hosts is not None:
            what = f"one of {self._hosts.group.ranks} ranks, on as many machines"
        click.echo(f"engines    {what} in Ray, {where} (--engines {settings.engines})")

    async def run(self) -> None:
        """Never returns by itself. Raise StartupError if it cannot listen."""
        async with trio.open_nursery() as nursery:
            for address in self._addresses or (_ALL_ADDRESSES,):
                try:
                    self._port = await nursery.start(self._listener.serve, address, self._port)
                except OSError as error:
                    raise StartupError(
                        f"cannot listen for engines on {address}:{self._port}: {error}"
                    ) from error
            where = ", ".join(self._addresses) or "the address that Ray has of this machine"
            click.echo(
                f"cluster    engines connect to {where}, port {self._port}, each with a token of its own, and"
                " then in plain text: prompts and answers can be read on the way; use Thunderbolt, a network"
                " that you trust or a VPN (--engine-address)"
            )
            await self._cluster.run()

    def report(self) -> dict[str, Any]:
        """Return the part `cluster` of `/v1/scheduler`."""
        body: dict[str, Any] = rounded(asdict(self._cluster.statistics()))
        return {**body, "port": self._port}

    def _launcher(self, starter: HostStarter) -> EngineLauncher:
        # The cluster adds the addresses, of which Ray may have to tell the first.
        if self._hosts is not None:
            group = self._hosts.group
            starters = [RankStarter(self._cluster, rank) for rank in range(group.ranks)]
            return GangLauncher(
                starters,
                group,
                self._listener,
                self._addresses,
                self._port,
                self._stop_seconds,
                blas=self._blas,
            )
        return RemoteLauncher(
            starter,
            self._listener,
            self._addresses,
            self._port,
            self._stop_seconds,
            blas=self._blas,
        )
