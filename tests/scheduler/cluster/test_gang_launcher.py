"""One engine whose ranks are on two machines: real host processes here, each with a device of its own."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex

import trio
from msgspec import structs

from loadtests.processes import children
from scheduler.cluster.gang_launcher import GangLauncher
from scheduler.cluster.order import HostOrder
from scheduler.link.channel import Channel, EngineGone
from scheduler.link.listener import Listener
from scheduler.link.messages import Fault, FromEngine, Load, RankGroup, Ready, ScriptedPlan, StepOutput
from scheduler.link.process import Exit
from tests.contracts.journal import prompt_of, request
from tests.fakes.local_hosts import LOOPBACK, LocalStarter
from tests.scheduler.engine.ranks.engine_of_ranks import gone
from tests.scheduler.link.real_engine import load

_LIMIT_SECONDS = 60.0
Session = Callable[[Channel], Awaitable[None]]


def _group(ranks: int = 2) -> RankGroup:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    hosts = tuple(f"{LOOPBACK}:{1 + rank}" for rank in range(ranks))
    return RankGroup(ranks, "ring", hosts, f"{LOOPBACK}:{port}", token_hex(32))


def _machines(folder: Path, ranks: int = 2) -> list[LocalStarter]:
    return [LocalStarter(folder, f"of rank {rank}") for rank in range(ranks)]


def _launch(machines: list[LocalStarter], group: RankGroup, session: Session) -> Exit:
    async def main() -> Exit:
        listener = Listener()
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(listener.serve, LOOPBACK, 0)
            launcher = GangLauncher(machines, group, listener, [LOOPBACK], port, 5.0)
            with trio.fail_after(_LIMIT_SECONDS):
                ended = await launcher.run(session)
            nursery.cancel_scope.cancel()
        return ended

    try:
        return trio.run(main)
    finally:
        for machine in machines:
            machine.close()


def _load(group: RankGroup, plan: ScriptedPlan | None = None) -> Load:
    loaded: Load = structs.replace(load(plan), ranks=group)
    return loaded


async def _until_gone(channel: Channel, heard: list[FromEngine]) -> None:
    try:
        while True:
            heard.append(await channel.receive())
    except EngineGone:
        return


def test_it_is_one_engine(tmp_path: Path) -> None:
    """Three machines, of which the session knows the first. At its end nothing is left on any of them."""
    machines, group, tokens = _machines(tmp_path, 3), _group(3), list[int]()

    async def session(channel: Channel) -> None:
        channel.send_nowait(_load(group))
        while not isinstance(ready := await channel.receive(), Ready):
            assert not isinstance(ready, Fault), ready
        assert ready.ranks == 3
        channel.send_nowait(request(1, prompt_of(9, 1), 5))
        while len(tokens) < 5:
            output = await channel.receive()
            assert isinstance(output, StepOutput)
            tokens.extend(out.token for out in output.tokens)

    _launch(machines, group, session)
    assert len(tokens) == 5
    assert gone([host.pid for machine in machines for host in machine.hosts])


def test_a_rank_that_dies_ends_the_engine_by_name(tmp_path: Path) -> None:
    machines, group, heard = _machines(tmp_path), _group(), list[FromEngine]()

    async def session(channel: Channel) -> None:
        channel.send_nowait(_load(group, ScriptedPlan(step_seconds=0.01)))
        while not isinstance(await channel.receive(), Ready):
            pass
        channel.send_nowait(request(1, prompt_of(9, 1), 5000))
        await channel.receive()
        (follower,) = children(machines[1].hosts[0].pid)
        os.kill(follower, signal.SIGKILL)
        await _until_gone(channel, heard)

    ended = _launch(machines, group, session)
    assert ended.returncode == 1
    fault = heard[-1]
    assert isinstance(fault, Fault)
    assert fault.error == f"rank 1 on {socket.gethostname()} closed its connection"
    assert gone([host.pid for machine in machines for host in machine.hosts])


def test_a_rank_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    """Its host process was started, and finds that rank 0 refuses it: nobody waits for the others."""
    machines, group = _machines(tmp_path), _group()

    class Stranger(LocalStarter):
        async def start(self, order: HostOrder) -> None:
            assert order.rank is not None
            await super().start(structs.replace(order, rank=structs.replace(order.rank, token="00" * 32)))

    machines[1] = Stranger(tmp_path, "of rank 1")
    heard: list[FromEngine] = []

    async def session(channel: Channel) -> None:
        channel.send_nowait(_load(group))
        await _until_gone(channel, heard)

    ended = _launch(machines, group, session)
    assert ended.returncode is None
    assert "rank 1 on" in ended.last_stderr[-1]
    assert "token is wrong" in ended.last_stderr[-1]
    assert gone([host.pid for machine in machines for host in machine.hosts])


def test_no_secret_is_in_an_orders_text() -> None:
    """Orders are logged where something fails."""
    group = _group()
    launcher = GangLauncher([LocalStarter(Path(), "0")] * 2, group, Listener(), [LOOPBACK], 1, 1.0)
    order = HostOrder((LOOPBACK,), 1, "11" * 32, "22" * 32, rank=launcher._rank_order(1))
    for secret in (group.token, "11" * 32, "22" * 32):
        assert secret not in repr(order)
    assert HostOrder.decode(order.encode()) == order
