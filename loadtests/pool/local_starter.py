"""Host processes on this machine, as launchers of remote engines have them on others. Only Ray is missing.

A file of its own because the tests of remote engines start theirs by it, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import trio
from msgspec import structs

from scheduler.cluster.host import DEVICE_VARIABLE
from scheduler.cluster.order import HostOrder
from scheduler.cluster.started_host import HostNotStarted, StartedHost, start_host
from scheduler.link.process import LaunchFailed

LOOPBACK = "127.0.0.1"
_END_SECONDS = 5.0


class LocalStarter:
    """A `HostStarter` whose machine is this one, as if it had one device for each name."""

    def __init__(self, caches: Path, device: str = "0", *, via: int | None = None) -> None:
        """`caches`: the folder of its locks. `via`: dial this port instead of the front's."""
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(caches), DEVICE_VARIABLE: device}
        self.hosts: list[StartedHost] = []
        self._via = via

    async def start(self, order: HostOrder) -> None:
        if self._via is not None:
            order = structs.replace(order, port=self._via)
        try:
            self.hosts.append(await trio.to_thread.run_sync(start_host, order, self.environment))
        except HostNotStarted as error:
            raise LaunchFailed(str(error)) from error

    def describe(self) -> str:
        return "this machine"

    def close(self) -> None:
        """Let its host processes end, which they do by now, unless the test is about one that does not."""
        for host in self.hosts:
            host.wait(_END_SECONDS)
            host.close()
