"""Which `penstock serve` has the listening socket, and how another one takes its place.

The supervisor never accepts a connection itself: it holds the socket open, so that connections wait in its
backlog while no process accepts, and every process that it starts inherits the same socket. Its decisions are
here; a process is behind `ServeProcess`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import trio

from api.operator.service.control import (
    AskUpgrade,
    Order,
    Refused,
    RolledBack,
    ServeState,
    Status,
    Upgraded,
)

_KILL_SECONDS = 10.0
"""After SIGTERM to a process that never got ready: it has nothing to drain."""

Say = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServeCommand:
    program: tuple[str, ...]
    """As `("/opt/penstock/bin/penstock",)`."""
    arguments: tuple[str, ...]
    """Those of `serve`."""


class ServeProcess(Protocol):
    """One started `penstock serve`."""

    @property
    def command(self) -> ServeCommand: ...

    @property
    def state(self) -> ServeState: ...

    @property
    def last_words(self) -> str:
        """Its last lines of output."""
        ...

    async def wait_ready(self) -> bool:
        """Return True when it serves, False if it ended before."""
        ...

    async def wait_end(self) -> int:
        """Return its exit status, when it is gone."""
        ...

    def retire(self) -> None:
        """Accept nothing more, and end when the connections have."""
        ...

    def stop(self) -> None:
        """Drain and end; a second time: end at once."""
        ...

    def kill(self) -> None: ...


class Supervisor:
    """`run` it once; `replace`, `stop` and `status` may be called meanwhile."""

    def __init__(
        self,
        launch: Callable[[ServeCommand], Awaitable[ServeProcess]],
        on_ready: Callable[[ServeState], None],
    ) -> None:
        """`on_ready` is called with every process that begins to serve."""
        self._launch = launch
        self._on_ready = on_ready
        self._serving: ServeProcess | None = None
        self._starting: ServeProcess | None = None
        self._retiring: list[ServeProcess] = []
        self._replacing = trio.Lock()
        self._stopping = False
        self._nobody_left = False
        self._nursery: trio.Nursery

    async def run(self, command: ServeCommand) -> int:
        """Return the exit status of the last process, when it has ended and no other takes its place."""
        self._serving = await self._launch(command)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._tell_ready, self._serving)
            while True:
                watched = self._serving
                status = await watched.wait_end()
                # Its successor may be on its way.
                async with self._replacing:
                    if self._serving is watched:
                        self._stopping = True
                        break
            for old in list(self._retiring):
                await old.wait_end()
            nursery.cancel_scope.cancel()
        # The old process retired well, but the service did not end as it should.
        return status or int(self._nobody_left)

    async def _tell_ready(self, process: ServeProcess) -> None:
        if await process.wait_ready():
            self._on_ready(process.state)

    def stop(self) -> None:
        """Drain all processes; a second time: end them at once."""
        self._stopping = True
        if self._starting is not None:
            self._starting.kill()
        processes = [] if self._serving is None else [self._serving]
        for process in [*processes, *(one for one in self._retiring if one not in processes)]:
            process.stop()

    def is_stopping(self) -> bool:
        return self._stopping

    def is_serving(self, pid: int) -> bool:
        return self._serving is not None and self._serving.state.pid == pid

    @property
    def is_changing(self) -> bool:
        """Whether it is right that no process serves."""
        return self._replacing.locked() or self._serving is None

    def status(self) -> Status | Refused:
        if self._serving is None:
            return Refused("the service has not started a process yet")
        retiring = tuple(one.state for one in self._retiring if one is not self._serving)
        return Status(os.getpid(), self._serving.state, retiring)

    async def replace(self, ask: AskUpgrade, say: Say) -> Upgraded | RolledBack | Refused:
        """Let another process take the serving one's place, without a connection refused or cut. Cancelled
        before the new process serves, one beside the old is rolled back; one at a time goes on."""
        if ask.order is Order.BESIDE or self._serving is None or self._stopping:
            return await self._replace(ask, say)
        replacing = _Replacing(partial(self._replace, ask, say), say)
        # Once the old one accepts nothing more, giving up half-way would leave nobody.
        self._nursery.start_soon(replacing.run)
        return await replacing.result()

    async def _replace(self, ask: AskUpgrade, say: Say) -> Upgraded | RolledBack | Refused:
        old = self._serving
        if old is None or self._stopping:
            return Refused("the service is starting or stopping")
        if self._replacing.locked():
            return Refused("another upgrade is under way")
        command = old.command
        if ask.program is not None:
            command = replace(command, program=ask.program)
        if ask.arguments is not None:
            command = replace(command, arguments=ask.arguments)
        async with self._replacing:
            if ask.order is Order.BESIDE:
                return await self._beside(old, command, ask, say)
            return await self._one_at_a_time(old, command, ask, say)

    async def _beside(
        self, old: ServeProcess, command: ServeCommand, ask: AskUpgrade, say: Say
    ) -> Upgraded | RolledBack:
        await say(f"starting {' '.join(command.program)} beside process {old.state.pid}, which serves on")
        new, reason = await self._start(command, ask.ready_seconds)
        if new is None:
            return RolledBack(reason)
        # From here on both accept from one socket: there is no moment in which nobody does.
        self._serving = new
        self._on_ready(new.state)
        self._nursery.start_soon(self._retire, old, ask.streams_seconds)
        return Upgraded(new.state)

    async def _one_at_a_time(
        self, old: ServeProcess, command: ServeCommand, ask: AskUpgrade, say: Say
    ) -> Upgraded | RolledBack:
        await say(f"process {old.state.pid} ends its streams; new connections wait")
        await self._retire(old, ask.streams_seconds)
        if self.is_stopping():
            return RolledBack("the service stops")
        self._nobody_left = True
        await say(f"starting {' '.join(command.program)}")
        new, reason = await self._start(command, ask.ready_seconds)
        if new is not None:
            self._serving, self._nobody_left = new, False
            self._on_ready(new.state)
            return Upgraded(new.state)
        if self.is_stopping():
            self._nobody_left = False
            return RolledBack(reason)
        await say(f"{reason}; starting the old version again")
        # Without a deadline: there is nothing else to fall back on.
        try:
            self._serving = again = await self._launch(old.command)
            self._nobody_left = False
        except OSError as error:
            return RolledBack(f"{reason}; the old version does not start again either: {error}")
        if await again.wait_ready():
            self._on_ready(again.state)
            return RolledBack(reason)
        return RolledBack(f"{reason}; the old version does not start again either: {again.last_words}")

    async def _start(self, command: ServeCommand, seconds: float) -> tuple[ServeProcess | None, str]:
        """Return a process that is ready; or None, with the reason, and then it is gone."""
        try:
            new = await self._launch(command)
        except OSError as error:
            return None, f"{command.program[0]} cannot be started: {error.strerror or error}"
        self._starting, is_ready = new, False
        try:
            with trio.move_on_after(0 if self._stopping else seconds) as deadline:
                is_ready = await new.wait_ready() and not self._stopping
        finally:
            self._starting = None
            if not is_ready:
                await _end(new)
        if is_ready:
            return new, ""
        if deadline.cancelled_caught:
            return None, f"the new version was not ready after {seconds:g} s: {new.last_words}"
        return None, f"the new version ended with status {await new.wait_end()}: {new.last_words}"

    async def _retire(self, old: ServeProcess, seconds: float) -> None:
        self._retiring.append(old)
        old.retire()
        with trio.move_on_after(seconds) as deadline:
            await old.wait_end()
        if deadline.cancelled_caught:
            old.stop()
            await old.wait_end()
        self._retiring.remove(old)


class _Replacing:
    """A replacement that goes on without the one who asked for it."""

    def __init__(self, work: Callable[[], Awaitable[Upgraded | RolledBack | Refused]], say: Say) -> None:
        self._work = work
        self._say = say
        self._done = trio.Event()
        self._is_awaited = True
        self._result: Upgraded | RolledBack | Refused | Exception

    async def run(self) -> None:
        """It runs beside the processes: it raises nothing."""
        try:
            self._result = await self._work()
        except Exception as error:
            self._result = error
        self._done.set()
        if not self._is_awaited:
            with suppress(Exception):
                await self._say(f"upgrade: {self._result!r}")

    async def result(self) -> Upgraded | RolledBack | Refused:
        """Raise what it raised."""
        try:
            await self._done.wait()
        except trio.Cancelled:
            self._is_awaited = False
            raise
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


async def _end(process: ServeProcess) -> None:
    """End a process that has no clients, also while this task is cancelled. One that a SIGKILL does not end
    within 10 s is left."""
    process.stop()
    for _ in range(2):
        with trio.move_on_after(_KILL_SECONDS, shield=True):
            await process.wait_end()
            return
        process.kill()
