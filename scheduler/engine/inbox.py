"""The engine's end of the link: a thread that reads, and a method that sends.

Reading in a thread ends this process immediately when the parent dies, also in the middle of a long step: an
orphan would hold the model's memory. The thread uses no MLX; only the main thread does.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import traceback

from scheduler.link.framing import encode, engine_inbound
from scheduler.link.messages import FromEngine, ToEngine

_READ_BYTES = 1 << 18
_SILENCE_SECONDS = 0.002
"""Twice the time that the parent takes from one request of a burst to the next."""
_BURST_SECONDS = 0.04
PARENT_GONE = 3
"""The exit code of an engine whose parent died or sent an invalid message."""


class Inbox:
    """Commands that have arrived, in order."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._commands: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="inbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> ToEngine:
        """Return the next command, without a time limit; if the parent dies, so does the process."""
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

    def send(self, message: FromEngine) -> None:
        """Send a message. Blocks while the parent is behind: 93 step frames fit the socket's buffer."""
        self._link.sendall(encode(message))

    def _read(self) -> None:
        reader = engine_inbound()
        try:
            while data := self._link.recv(_READ_BYTES):
                for command in reader.feed(data):
                    self._commands.put(command)
        except Exception:
            # The parent reads the cause of death from stderr.
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            # os._exit: the main thread may be deep inside a step, and nothing here is worth keeping.
            os._exit(PARENT_GONE)
