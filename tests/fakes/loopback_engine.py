"""The engine's own loop in this process, over memory streams: same messages, same frames, and the test's
clock. Only the process is missing; `tests/scheduler/processes/test_process.py` tests that."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

import trio
import trio.testing

from scheduler.engine.backend import Backend, started
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.planning.chunk_ceiling import ChunkCeiling
from scheduler.engine.planning.pace import PrefillPace
from scheduler.processes.channel import Channel
from scheduler.processes.process import Exit, Session
from scheduler.shared.framing import encode, engine_inbound
from scheduler.shared.messages import Alive, Begun, Fault, Load, Pulse, ToEngine
from tests.fakes.faulty_backend import (
    HEALTHY,
    METAL_TIMEOUT,
    EngineDeath,
    EngineHang,
    EngineTimeout,
    Faults,
    FaultyBackend,
)

_TRACEBACK = "Traceback (most recent call last):"


def scripted(load: Load, faults: Faults = HEALTHY) -> Backend:
    # The shell below sleeps for the step's time, on the virtual clock.
    return FaultyBackend(
        load.scripted,
        faults,
        sleep=lambda seconds: None,
        kv_cache_bytes=load.kv_cache_bytes,
        clock=trio.current_time,
        kv_cache_share=load.kv_cache_share,
        memory_limit_bytes=int(load.memory_limit) if load.memory_limit > 1 else 0,
        memory_part=load.memory_part,
        adapters=load.adapters,
    )


def faulty(**faults: int) -> Callable[[Load], Backend]:
    """Return a factory of back ends that have these `Faults`, each of them."""
    return lambda load: scripted(load, Faults(**faults))


class LoopbackLauncher:
    """An `EngineLauncher` whose engines live in the caller's process."""

    def __init__(self, make_backend: Callable[[Load], Backend] = scripted) -> None:
        self._make_backend = make_backend
        self.step_seconds: Callable[[Begun], float] | None = None
        """How long a step takes that was reported so; None for as long as the scripted plan says."""
        self._running: trio.CancelScope | None = None
        self._last_stderr: tuple[str, ...] = ()
        self._returncode = 0
        self.starts = 0
        self.loop: EngineLoop | None = None
        self.backend: Backend | None = None

    def kill(self) -> None:
        """Kill the running engine now, as by SIGKILL."""
        assert self._running is not None
        self._running.cancel()

    async def run(self, session: Session) -> Exit:
        self.starts += 1
        # If `kill` ends it.
        self._last_stderr, self._returncode = (), -signal.SIGKILL
        ours, theirs = trio.testing.memory_stream_pair()
        channel = Channel(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.write_forever)
            nursery.start_soon(self.serve, theirs)
            try:
                await session(channel)
            finally:
                nursery.cancel_scope.cancel()
        return Exit(self._returncode, self._last_stderr)

    async def serve(self, link: trio.abc.Stream) -> None:
        """Be an engine until it dies, or its link ends."""
        with trio.CancelScope() as self._running:
            async with trio.open_nursery() as nursery:
                shell = _Shell(link)
                nursery.start_soon(shell.read, self._running)
                try:
                    await self._live(shell)
                except EngineTimeout:
                    self._last_stderr, self._returncode = (METAL_TIMEOUT,), -signal.SIGABRT
                except EngineDeath:
                    self._returncode = -signal.SIGSEGV
                nursery.cancel_scope.cancel()
        # Not under the cancelled scope: the parent sees a death by this close.
        await trio.aclose_forcefully(link)

    async def _live(self, shell: _Shell) -> None:
        load = (await shell.wait())[0]
        assert isinstance(load, Load)
        try:
            self.backend = self._make_backend(load)
        except Exception as error:
            await shell.link.send_all(encode(Fault(str(error))))
            return
        begun: list[Begun] = []
        last_begun = Begun("reading", ())
        self.loop = loop = EngineLoop(
            self.backend,
            load.max_slots,
            PrefillPace(load.prefill_chunk_tokens),
            clock=trio.current_time,
            ceiling=ChunkCeiling.of(load),
            speculation=None if load.speculation == "none" else Speculation(),
            begins=begun.append,
        )
        await shell.link.send_all(encode(started(self.backend, load)))
        while True:
            commands = await shell.wait() if loop.idle else shell.drain_nowait()
            frames, end = [], None
            try:
                frames = loop.iterate(commands)
            except (Exception, EngineDeath, EngineHang) as error:
                end = error
            # The real engine has sent them before it did what they report.
            for report in begun:
                await shell.link.send_all(encode(report))
            seconds = load.scripted.step_seconds
            if begun:
                last_begun = begun[-1]
            begun.clear()
            if self.step_seconds is not None:
                seconds = self.step_seconds(last_begun)
            match end:
                case EngineHang():
                    await trio.sleep_forever()
                case EngineDeath():
                    raise end
                case Exception():
                    self._last_stderr = (_TRACEBACK, f"{type(end).__name__}: {end}")
                    self._returncode = 1
                    await shell.link.send_all(encode(Fault(self._last_stderr[-1])))
                    return
                case _:
                    pass
            await trio.sleep(seconds)
            for frame in frames:
                await shell.link.send_all(encode(frame))


class _Shell:
    """The counterpart of the real engine's `Inbox`."""

    def __init__(self, link: trio.abc.Stream) -> None:
        self.link = link
        self._reader = engine_inbound()
        self._commands: list[ToEngine] = []
        self._arrived = trio.Event()

    async def read(self, engine: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.link.receive_some():
                for command in self._reader.feed(data):
                    if isinstance(command, Pulse):
                        await self.link.send_all(encode(Alive(0.0)))
                    else:
                        self._commands.append(command)
                        self._arrived.set()
        engine.cancel()

    async def wait(self) -> list[ToEngine]:
        while not self._commands:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self.drain_nowait()

    def drain_nowait(self) -> list[ToEngine]:
        commands, self._commands = self._commands, []
        return commands
