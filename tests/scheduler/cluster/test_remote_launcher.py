"""What becomes of a launch when the other machine does something else: over memory streams, in virtual time.

`tests/scheduler/link/test_process.py` runs this launcher with real processes, beside the one of child
processes; `test_host.py` has what only a host process can do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
import trio
import trio.testing

from scheduler.cluster.host_messages import (
    ENGINE_ROLE,
    HOST_ROLE,
    EngineExited,
    EngineStarted,
    FromHost,
    NotStarted,
    StderrOutput,
)
from scheduler.cluster.order import HostOrder
from scheduler.cluster.remote_launcher import RemoteLauncher
from scheduler.link.channel import Channel, EngineGone
from scheduler.link.framing import encode
from scheduler.link.hello import Hello
from scheduler.link.listener import Listener
from scheduler.link.messages import PROTOCOL_VERSION, Loading
from scheduler.link.process import Exit, LaunchFailed, LaunchRefused

FRONT = ("10.0.0.1", "mac-1.local")
STOP_SECONDS = 5.0


class Machine:
    """A `HostStarter`, and what a test does there in place of a host process."""

    def __init__(self, nursery: trio.Nursery, listener: Listener, behaviour: Behaviour) -> None:
        self.nursery = nursery
        self._listener = listener
        self._behaviour = behaviour
        self.orders: list[HostOrder] = []

    async def start(self, order: HostOrder) -> None:
        self.orders.append(order)
        await self._behaviour(self, order)

    def describe(self) -> str:
        return "mac-2"

    async def dial(self, token: str, role: str, version: int = PROTOCOL_VERSION) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self._listener.identify, theirs)
        await ours.send_all(encode(Hello(version, token, role, "mac-2")))
        await ours.receive_some()
        return ours

    async def host(self, order: HostOrder, *messages: FromHost) -> trio.abc.Stream:
        """Connect as its host process, and send these messages."""
        link = await self.dial(order.host_token, HOST_ROLE)
        for message in messages:
            await link.send_all(encode(message))
        return link

    async def both(self, order: HostOrder, *messages: FromHost) -> tuple[trio.abc.Stream, trio.abc.Stream]:
        link = await self.host(order)
        engine = await self.dial(order.engine_token, ENGINE_ROLE)
        for message in (EngineStarted(7), *messages):
            await link.send_all(encode(message))
        return link, engine


Behaviour: TypeAlias = Callable[[Machine, HostOrder], Awaitable[None]]


async def no_session(channel: Channel) -> None:
    raise AssertionError("there is no engine to talk to")


def launch(
    behaviour: Behaviour, session: Callable[[Channel], Awaitable[None]] = no_session
) -> tuple[Exit | Exception, float, Machine]:
    """Return how the launch ended, after how many seconds, and the machine."""

    async def main() -> tuple[Exit | Exception, float, Machine]:
        listener = Listener()
        async with trio.open_nursery() as nursery:
            machine = Machine(nursery, listener, behaviour)
            launcher = RemoteLauncher(machine, listener, FRONT, 9000, STOP_SECONDS, {"A": "b"})
            started = trio.current_time()
            ended: Exit | Exception
            try:
                ended = await launcher.run(session)
            except (LaunchFailed, LaunchRefused) as error:
                ended = error
            seconds = trio.current_time() - started
            # Nobody is waited for any more, whatever happened.
            for role, token in ((HOST_ROLE, "host_token"), (ENGINE_ROLE, "engine_token")):
                late = await machine.dial(getattr(machine.orders[0], token), role)
                with pytest.raises(trio.BrokenResourceError):
                    await late.send_all(b"?")
            nursery.cancel_scope.cancel()
        return ended, seconds, machine

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_order_says_where_to_dial_and_what_the_engine_gets() -> None:
    """With two different tokens, which its text does not show."""

    async def refuse(machine: Machine, order: HostOrder) -> None:
        raise LaunchFailed("no room")

    ended, _, machine = launch(refuse)
    [order] = machine.orders
    assert str(ended) == "no room"
    assert (order.addresses, order.port, order.environment) == (FRONT, 9000, (("A", "b"),))
    assert order.host_token != order.engine_token
    assert order.host_token not in repr(order)
    assert HostOrder.decode(order.encode()) == order


async def _never(machine: Machine, order: HostOrder) -> None:
    await trio.sleep_forever()


async def _silent(machine: Machine, order: HostOrder) -> None:
    pass


async def _host_only(machine: Machine, order: HostOrder) -> None:
    await machine.host(order)


async def _engine_missing(machine: Machine, order: HostOrder) -> None:
    await machine.host(order, EngineStarted(7))


async def _busy(machine: Machine, order: HostOrder) -> None:
    await machine.host(order, NotStarted("device '0' of mac-2 is in use by process 7"))


async def _leaves(machine: Machine, order: HostOrder) -> None:
    await (await machine.host(order)).aclose()


async def _out_of_order(machine: Machine, order: HostOrder) -> None:
    await machine.host(order, EngineExited(0))


async def _garbage(machine: Machine, order: HostOrder) -> None:
    await (await machine.host(order)).send_all(b"\0\0\0\3abc")


@pytest.mark.parametrize(
    ("behaviour", "reason", "seconds"),
    [
        (_never, "no host process was started on mac-2 within 60 s", 60),
        (_silent, "the host process on mac-2 did not connect within 10 s", 10),
        (_host_only, "no engine was started on mac-2 within 40 s", 40),
        (_engine_missing, "the host process on mac-2 did not connect within 10 s", 10),
        (_busy, "device '0' of mac-2 is in use by process 7", 0),
        (_leaves, "the host process on mac-2 ended without a word", 0),
        (_out_of_order, "host mac-2 sent EngineExited before the engine was started", 0),
        (_garbage, "host mac-2: a frame of 3 bytes is not a message", 0),
    ],
)
def test_a_launch_that_comes_to_nothing_says_why_in_time(
    behaviour: Behaviour, reason: str, seconds: float
) -> None:
    ended, after, _ = launch(behaviour)
    assert isinstance(ended, LaunchFailed)
    assert str(ended).startswith(reason)
    assert after == pytest.approx(seconds)


@pytest.mark.parametrize("start_fails", [False, True])
def test_another_version_is_refused_for_good(start_fails: bool) -> None:
    """By name, also when the starter has found out that it came to nothing."""
    ahead = PROTOCOL_VERSION + 1

    async def outdated(machine: Machine, order: HostOrder) -> None:
        await machine.dial(order.host_token, HOST_ROLE, ahead)
        if start_fails:
            raise LaunchFailed("the process ended with status 1")

    ended, _, _ = launch(outdated)
    assert isinstance(ended, LaunchRefused)
    assert str(ended) == f"host mac-2 speaks protocol {ahead}, this server {PROTOCOL_VERSION}"


def test_last_messages_are_read_before_the_end() -> None:
    """The host process may report the end before the engine's own connection has delivered its last words."""
    heard: list[str] = []

    async def dying(machine: Machine, order: HostOrder) -> None:
        async def live() -> None:
            _, engine = await machine.both(
                order, StderrOutput(b"Trace"), StderrOutput(b"back\nlast"), EngineExited(-9)
            )
            await trio.sleep(1)
            await engine.send_all(encode(Loading("late")))
            await engine.aclose()

        machine.nursery.start_soon(live)

    async def session(channel: Channel) -> None:
        try:
            while True:
                message = await channel.receive()
                assert isinstance(message, Loading)
                heard.append(message.stage)
        except EngineGone:
            heard.append("gone")

    ended, _, _ = launch(dying, session)
    assert heard == ["late", "gone"]
    assert ended == Exit(-9, ("Traceback", "last"))


def test_the_end_of_the_host_process_is_the_engines() -> None:
    """Nobody could read its stderr or kill it any more: its link is closed from here."""

    async def dying(machine: Machine, order: HostOrder) -> None:
        async def live() -> None:
            link, engine = await machine.both(order, StderrOutput(b"a word\n"))
            await trio.sleep(1)
            await link.aclose()
            assert await engine.receive_some() == b"", "the engine sees the end of its link"

        machine.nursery.start_soon(live)

    async def session(channel: Channel) -> None:
        with pytest.raises(EngineGone):
            await channel.receive()

    ended, after, _ = launch(dying, session)
    assert ended == Exit(None, ("a word",))
    assert after == pytest.approx(1)


@pytest.mark.parametrize("unresponsive", [False, True])
def test_a_machine_that_is_frozen_delays_nothing_for_long(unresponsive: bool) -> None:
    """It reads nothing and closes nothing: after twice the time to stop nobody waits for it any more."""

    async def frozen(machine: Machine, order: HostOrder) -> None:
        machine.nursery.start_soon(machine.both, order)

    async def session(channel: Channel) -> None:
        channel.unresponsive = unresponsive

    ended, after, _ = launch(frozen, session)
    assert ended == Exit(None, ended_by_us=True)
    assert after == pytest.approx(2 * STOP_SECONDS + (3.0 if unresponsive else 0.0))
