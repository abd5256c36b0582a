"""The engine's end of the link: a thread that reads and answers a Pulse, and a method that sends.

Reading in a thread ends this process immediately when the server dies, also in the middle of a long step: an
orphan would hold the model's memory. The thread uses no MLX; only the main thread does.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

from scheduler.shared.framing import encode, engine_inbound
from scheduler.shared.messages import Alive, Pulse, ToEngine
from scheduler.shared.wire_struct import WireStruct

_READ_BYTES = 1 << 18
_SILENCE_SECONDS = 0.002
"""Twice the time that the server takes from one request of a burst to the next."""
_BURST_SECONDS = 0.04
SERVER_GONE = 3
"""The exit code of an engine whose server died or sent an invalid message."""

_THREADS = Path("/proc/self/task")


def waited_seconds(threads: Path = _THREADS) -> float:
    """Return how long the threads of this process have waited for a core, where the kernel counts it; else 0.
    Without the calling thread, which wakes for each Pulse: on a busy machine it waits, also where the others
    hang."""
    own, waited = str(threading.get_native_id()), 0
    with suppress(OSError):
        for thread in threads.iterdir():
            with suppress(OSError, ValueError, IndexError):
                if thread.name != own:
                    waited += int((thread / "schedstat").read_text().split()[1])
    return waited / 1e9


def inherited_link(fd: int) -> socket.socket:
    """Prepare a process that the server started, and return its end of the link, descriptor `fd`."""
    # Ctrl-C reaches the whole foreground process group, but only the server decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_standard_output_clean()
    return socket.socket(fileno=fd)


def keep_standard_output_clean() -> None:
    """Send what this process prints to stderr, where its stacks go, too, if it crashes."""
    faulthandler.enable()
    # The server owns standard output, and a library's stray print must not appear there. Redirect both the
    # Python object, which is line-buffered (a block-buffered one would delay its lines), and the descriptor
    # that C code writes to.
    reserved, sys.stdout = sys.stdout, sys.stderr
    os.dup2(sys.stderr.fileno(), reserved.fileno())


class Inbox:
    """Commands that have arrived, in order."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._reader = engine_inbound()
        self._commands: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="inbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> ToEngine:
        """Return the next command, without a time limit; if the server dies, so does the process."""
        return self._commands.get()

    def wait_burst(self) -> list[ToEngine]:
        """Return the next command, and those that follow within 2 ms of each other.

        For an idle engine: agents send bursts. If the first step had one row of thirty-two, the others would
        wait for its prefill, and every later batch would be fragmented (7 % of the throughput of 32 short
        requests). A lone request waits for the 2 ms of silence after it.
        """
        commands = [self._commands.get()]
        last_call = time.monotonic() + _BURST_SECONDS
        while (left := last_call - time.monotonic()) > 0:
            try:
                commands.append(self._commands.get(timeout=min(left, _SILENCE_SECONDS)))
            except queue.Empty:
                break
        return commands

    def wait_briefly(self) -> list[ToEngine]:
        """Return commands that arrive within 2 ms: for an engine without rows that has background work."""
        try:
            first = self._commands.get(timeout=_SILENCE_SECONDS)
        except queue.Empty:
            return []
        return [first, *self.drain_nowait()]

    def drain_nowait(self) -> list[ToEngine]:
        """Return all commands that have arrived."""
        commands: list[ToEngine] = []
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                return commands

    def send(self, message: WireStruct) -> None:
        """Send a message. End this process if the server is gone. Blocks while the server is behind by more
        than the link's buffer, which is a thousand step frames of 32 rows."""
        with self._sending:
            try:
                self._link.sendall(encode(message))
            except OSError:
                os._exit(SERVER_GONE)

    def _read(self) -> None:
        try:
            while data := self._link.recv(_READ_BYTES):
                for command in self._reader.feed(data):
                    if isinstance(command, Pulse):
                        self.send(Alive(time.process_time() + waited_seconds()))
                    else:
                        self._commands.put(command)
        except Exception:
            # The server reads the cause of death from stderr.
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            # os._exit: the main thread may be deep inside a step, and nothing here is worth keeping.
            os._exit(SERVER_GONE)
