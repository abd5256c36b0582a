"""One `penstock serve` that the supervisor has started: its sockets, its output, and what it reports.

It reports as to systemd, on a datagram socket of its own: READY when its model answers, and then life.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from api.operator.service.control import ServeState
from api.operator.service.supervisor import ServeCommand

_WATCHDOG_SECONDS = 30.0
"""It pings in half of this. The supervisor passes pings on, and does not judge them itself."""
_MOST_NOTICE_BYTES = 4096
_LAST_LINES = 3
_MOST_LINE_BYTES = 64 * 1024
_LAST_OUTPUT_SECONDS = 5.0
"""An engine that outlives its parent for a moment holds the pipe open."""

Output = Callable[[bytes], None]
"""Called with whole lines."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Listening sockets, by descriptor."""

    clients: tuple[int, ...]
    metrics: tuple[int, ...] = ()

    def arguments(self) -> list[str]:
        """The options of `serve` that name them."""
        given = ["--listen-fds", ",".join(map(str, self.clients))]
        return given + (["--metrics-listen-fds", ",".join(map(str, self.metrics))] if self.metrics else [])


class StartedServe:
    """A `supervisor.ServeProcess`."""

    def __init__(self, command: ServeCommand, process: trio.Process, on_life: Callable[[], None]) -> None:
        self._command = command
        self._process = process
        self._on_life = on_life
        self._started_at = trio.current_time()
        self._version: str | None = None
        self._changed = trio.Event()
        self._status: int | None = None
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def command(self) -> ServeCommand:
        return self._command

    @property
    def state(self) -> ServeState:
        age = trio.current_time() - self._started_at
        return ServeState(
            self._process.pid, self._version, self._command.program, self._command.arguments, age
        )

    @property
    def last_words(self) -> str:
        return " | ".join(self._lines) or "it said nothing"

    async def wait_ready(self) -> bool:
        while self._version is None and self._status is None:
            await self._changed.wait()
        return self._version is not None and self._status is None

    async def wait_end(self) -> int:
        while self._status is None:
            await self._changed.wait()
        return self._status

    def retire(self) -> None:
        self._signal(signal.SIGUSR2)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    # ---- what it reports

    def heard(self, fields: Mapping[str, str]) -> None:
        if fields.get("READY") == "1":
            self._version = fields.get("X_PENSTOCK_VERSION", "unknown")
            self._change()
        if "WATCHDOG" in fields:
            self._on_life()

    def printed(self, lines: bytes) -> None:
        self._lines.extend(line for line in lines.decode(errors="replace").splitlines() if line.strip())

    def ended(self, status: int) -> None:
        self._status = status
        self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


class Launcher:
    """Starts processes on the same sockets, and follows each to its end in `nursery`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        sockets: Sockets,
        folder: Path,
        environment: Callable[[], dict[str, str]],
        output: Output,
        on_life: Callable[[int], None],
    ) -> None:
        """`folder`: for their notice sockets. `environment` is called for each process: a key that has been
        changed in the file is the new one's. `on_life`: called with the process that reports life."""
        self._nursery = nursery
        self._sockets = sockets
        self._folder = folder
        self._environment = environment
        self._output = output
        self._on_life = on_life
        self._count = 0

    async def __call__(self, command: ServeCommand) -> StartedServe:
        """Raise OSError if the program cannot be started."""
        self._count += 1
        path = self._folder / f"notice-{self._count}"
        _remove(path)
        notices = trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            await notices.bind(str(path))
            process = await self._open(command, path)
        except BaseException:
            notices.close()
            _remove(path)
            raise
        started = StartedServe(command, process, lambda: self._on_life(process.pid))
        self._nursery.start_soon(self._follow, started, process, notices, path)
        return started

    async def _open(self, command: ServeCommand, notices: Path) -> trio.Process:
        environment = self._environment()
        environment["NOTIFY_SOCKET"] = str(notices)
        environment["WATCHDOG_USEC"] = str(int(_WATCHDOG_SECONDS * 1e6))
        # Otherwise a pipe would keep back what it prints.
        environment["PYTHONUNBUFFERED"] = "1"
        return await trio.lowlevel.open_process(
            [*command.program, "serve", *command.arguments, *self._sockets.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[*self._sockets.clients, *self._sockets.metrics],
            env=environment,
            # Ctrl-C in a terminal reaches the supervisor, which decides who drains.
            process_group=0,
        )

    async def _follow(
        self, started: StartedServe, process: trio.Process, notices: trio.socket.SocketType, path: Path
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, notices, started)
                printed = trio.Event()
                nursery.start_soon(self._pump, process, started, printed)
                await process.wait()
                with trio.move_on_after(_LAST_OUTPUT_SECONDS):
                    await printed.wait()
                started.ended(_exit_status(process.returncode))
                nursery.cancel_scope.cancel()
        finally:
            notices.close()
            _remove(path)
            if process.returncode is None:
                # This program ends otherwise than by a drain; it must leave nobody behind.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    async def _pump(self, process: trio.Process, started: StartedServe, printed: trio.Event) -> None:
        assert process.stdout is not None
        left = b""
        async with process.stdout:
            async for data in process.stdout:
                whole, newline, left = (left + data).rpartition(b"\n")
                if len(left) > _MOST_LINE_BYTES:
                    whole, newline, left = whole + newline + left, b"\n", b""
                if newline:
                    started.printed(whole)
                    self._output(whole + b"\n")
        if left:
            started.printed(left)
            self._output(left + b"\n")
        printed.set()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _listen(notices: trio.socket.SocketType, started: StartedServe) -> None:
    while True:
        data = await notices.recv(_MOST_NOTICE_BYTES)
        pairs = (line.partition("=") for line in data.decode(errors="replace").splitlines())
        started.heard({name: value for name, _, value in pairs})


def _exit_status(code: int | None) -> int:
    """As a shell reports it: 128 and the signal's number."""
    assert code is not None
    return code if code >= 0 else 128 - code


def descriptors_of(listeners: Sequence[trio.SocketListener]) -> tuple[int, ...]:
    return tuple(one.socket.fileno() for one in listeners)
