"""Start one engine whose ranks are on several machines, run one session with it, and always end it.

Rank 0 is an engine like any other, with which the session speaks. The other ranks' host processes connect
here, too, for their stderr and their end; what rank 0 sends them goes from machine to machine. A rank that
dies is rank 0's to notice, which then ends; a rank that cannot be started is noticed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
import trio

from scheduler.cluster.host_messages import HOST_ROLE
from scheduler.cluster.order import HostOrder, HostStarter, RankOrder
from scheduler.cluster.remote_launcher import CLOSE_SECONDS, RemoteLauncher, host_link
from scheduler.link.listener import Listener
from scheduler.link.messages import RankGroup
from scheduler.link.process import Exit, LaunchFailed, LaunchRefused, Session

_log = structlog.get_logger("cluster")


class GangLauncher:
    """An EngineLauncher for as many machines as there are ranks."""

    def __init__(
        self,
        starters: Sequence[HostStarter],
        group: RankGroup,
        listener: Listener,
        addresses: Sequence[str],
        port: int,
        stop_seconds: float,
        environment: Mapping[str, str] | None = None,
        blas: str = "off",
    ) -> None:
        """`starters`: by rank. `group`: as the session's Load has it. The rest as for a RemoteLauncher."""
        self._leader = RemoteLauncher(
            starters[0], listener, addresses, port, stop_seconds, environment, blas=blas
        )
        self._blas = blas
        self._others = tuple(starters[1:])
        self._group = group
        self._listener = listener
        self._addresses = tuple(addresses)
        self._port = port
        self._environment = tuple((environment or {}).items())

    async def run(self, session: Session) -> Exit:
        failed: LaunchFailed | LaunchRefused | None = None
        ended: Exit | None = None
        lost: list[str] = []
        async with trio.open_nursery() as nursery:
            engine = trio.CancelScope()
            try:
                for rank, starter in enumerate(self._others, 1):
                    await nursery.start(self._keep, rank, starter, engine, lost)
                with engine:
                    ended = await self._leader.run(session)
            except (LaunchFailed, LaunchRefused) as error:
                # Raised outside the nursery, which would wrap it in an exception group.
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return ended or Exit(None, tuple(lost))

    async def _keep(
        self,
        rank: int,
        starter: HostStarter,
        engine: trio.CancelScope,
        lost: list[str],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Follow a rank's host process from its connection, with which this starts, until it ends. Cancels
        `engine` if the rank cannot be started: rank 0 would wait for it."""
        async with self._listener.expect(HOST_ROLE) as host:
            order = HostOrder(
                self._addresses,
                self._port,
                host.token,
                "",
                self._environment,
                self._blas,
                self._rank_order(rank),
            )
            link = await host_link(starter, order, host)
        try:
            task_status.started()
            started = await link.started()
            if isinstance(started, str):
                lost.append(f"rank {rank} on {link.host}: {started}")
                _log.error("rank_not_started", rank=rank, host=link.host, reason=started)
                engine.cancel()
                return
            _log.info("rank_started", rank=rank, host=link.host, pid=started)
            await link.follow()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                await link.aclose()

    def _rank_order(self, rank: int) -> RankOrder:
        address, _, port = self._group.control.rpartition(":")
        return RankOrder(rank, (address,), int(port), self._group.token)
