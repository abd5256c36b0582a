"""Start a child process on one end of a socket pair, run a session with it, and always end it.

End of file on the socket pair signals death, in both directions. PR_SET_PDEATHSIG is not used: it follows the
server's *thread*, and the trio worker thread that started the child expires after ten seconds, which
would kill a healthy engine.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

from scheduler.shared.own_path import with_own_path

_log = structlog.get_logger("engine")
_LINES_KEPT = 400
"""Enough for a deep traceback with its header, which is needed to find the exception line, and for the stacks
of all threads that faulthandler writes behind a device's last words: six lines for one that waits."""
_LINE_BYTES = 8192
"""Bound on a line that never ends."""
_DUMP_SECONDS = 1.0
"""Time for a hung process to write its stacks."""
_LAST_WORDS_SECONDS = 1.0
"""Time to read a dead process's stderr; end of file may never come if it left a child process."""

BUFFER_BYTES = 1 << 20
"""Size of each end's two buffers. macOS gives a pair 8 KiB: a few step frames, after which the engine waits
in every pause of the server's loop. With 8 KiB on Linux, steps of 4 ms and pauses of 50 ms in every 100, the
engine waited 181 ms a second (203 steps/s); with these buffers 2 to 8 (247 steps/s). Beside a thread that
computes, a prompt of 100,000 tokens was read in 51 pieces and 183 ms; with these buffers in 2 pieces and 16
ms. Linux gives 208 KiB unasked, and at most `wmem_max`."""

Talk = Callable[[trio.abc.Stream], Awaitable[bool]]
"""Speaks with the child over its link. Returns whether the child hangs."""


class StderrTail:
    """A child process's stderr, line by line: to our log, and the last lines for the cause of death. Fed with
    bytes in pieces of any size. `event`: that of each line in the log."""

    def __init__(self, event: str = "engine_stderr") -> None:
        self._event = event
        self._kept: deque[str] = deque(maxlen=_LINES_KEPT)
        self._pending = b""

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the last lines."""
        return tuple(self._kept)

    def feed(self, data: bytes | bytearray) -> None:
        *lines, pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._relay(line)
        self._pending = pending[-_LINE_BYTES:]

    def end(self) -> None:
        """Take what is left as a line, too: nothing follows."""
        self._relay(self._pending)
        self._pending = b""

    def _relay(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            self._kept.append(text)
            _log.info(self._event, line=text)


class LaunchFailed(Exception):
    """No process could be started, for lack of descriptors, processes or memory. It may work later."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `returncode` is negative for a signal."""

    returncode: int | None
    last_stderr: tuple[str, ...] = ()
    ended_by_us: bool = False
    """Whether it had to be killed here, because it hung or did not end with its link."""
    out_of_memory: bool = False
    """Whether the kernel killed a process of this machine or container meanwhile, for lack of memory."""

    def __str__(self) -> str:
        match self.returncode:
            case None:
                return "left no exit status"
            case code if code < 0:
                known = -code in {*signal.Signals}
                return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
            case code:
                return f"exited with status {code}"


class ChildProcess:
    """`python -m module --fd N arguments`, N being its end of a socket pair. Each `run` is one process."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stop_seconds: float,
    ) -> None:
        """`name`: the process's name in errors and in the log, to which its stderr goes. `stop_seconds`: from
        the end of its link to SIGKILL."""
        self._name, self._module, self._arguments = name, module, tuple(arguments)
        self._environment = dict(environment)
        self._stop_seconds = stop_seconds

    async def run(self, talk: Talk) -> Exit:
        """Start the process, let `talk` speak with it, and return when the process has ended. It is ended
        when `talk` returns, raises or is cancelled. Raise LaunchFailed before `talk` is called."""
        process, ours = await self._start()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        oom_kills_before, hung, ended_by_us = oom_kills(), False, False
        tail, relayed = StderrTail(f"{self._name}_stderr"), trio.Event()
        assert process.stderr is not None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(relay_stderr, process.stderr, tail, relayed)
                try:
                    hung = await talk(stream)
                finally:
                    ended_by_us = await self._end(process, stream, hung=hung)
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_WORDS_SECONDS):
                        await relayed.wait()
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await process.stderr.aclose()
        return Exit(process.returncode, tail.lines, ended_by_us, oom_kills() > oom_kills_before)

    async def _start(self) -> tuple[trio.Process, socket.socket]:
        """Return the process and our end of its link."""
        try:
            ours, theirs = link_pair()
        except OSError as error:
            raise LaunchFailed(f"the {self._name} could not be started: {error}") from error
        try:
            with theirs:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-m", self._module, "--fd", str(theirs.fileno()), *self._arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=with_own_path(self._environment),
                    # Its own session: only the server handles Ctrl-C in the terminal.
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise LaunchFailed(f"the {self._name} could not be started: {error}") from error
        except BaseException:
            ours.close()
            raise
        return process, ours

    async def _end(self, process: trio.Process, stream: trio.SocketStream, *, hung: bool) -> bool:
        """Close the link, which ends an engine even in the middle of a step; kill the process if it does not
        exit. Return whether it was killed.

        Shielded, because an orphaned engine is worse than a late exit.
        """
        killed = hung
        if hung:
            # On SIGABRT its faulthandler writes the stacks of all threads to stderr, and the process ends.
            process.send_signal(signal.SIGABRT)
            # A stopped process handles no signal but SIGKILL until it continues.
            process.send_signal(signal.SIGCONT)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _DUMP_SECONDS):
                await process.wait()
            if process.returncode is None:
                process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._stop_seconds):
            await stream.aclose()
            await process.wait()
        if process.returncode is None:
            killed = True
            process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._stop_seconds):
                await process.wait()
        return killed


def link_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends, each with room for what a pause of its reader accumulates. Raise OSError."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            # macOS refuses what is above `kern.ipc.maxsockbuf` (8 MiB, unless it was changed).
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return ours, theirs


async def relay_stderr(stream: trio.abc.ReceiveStream, tail: StderrTail, relayed: trio.Event) -> None:
    """Relay a stderr to its end, which may never come if the process left a child of its own."""
    try:
        async for data in stream:
            tail.feed(data)
        tail.end()
    finally:
        relayed.set()


def oom_kills(root: Path = Path("/")) -> int:
    """Return how often the kernel has killed a process of this control group, or of the machine where it has
    none, for lack of memory: a SIGKILL does not show who sent it. macOS counts nothing that a process may
    read: 0."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        events = root / "sys/fs/cgroup" / path.lstrip("/") / "memory.events"
        if not controllers and (kills := _count(_read(events))) is not None:
            return kills
    return _count(_read(root / "proc/vmstat")) or 0


def _count(text: str) -> int | None:
    found = (line.split() for line in text.splitlines())
    return next((int(words[1]) for words in found if len(words) == 2 and words[0] == "oom_kill"), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
