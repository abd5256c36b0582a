"""The host process: `python -m scheduler.cluster.host`, which runs one engine for a front on another machine.

Its order comes by stdin (`order.py`). It connects to the front, goes on without a parent, and hangs on that
connection alone: what started it may die, and at the connection's end it ends its engine and itself.
Standard library and `scheduler/link` only: it lives beside every engine.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from scheduler.cluster.device_lock import DeviceBusy, lock_device
from scheduler.cluster.host_messages import (
    ENGINE_ROLE,
    HOST_ROLE,
    AbortEngine,
    EngineExited,
    EngineStarted,
    FromHost,
    KillEngine,
    NotStarted,
    StderrOutput,
    host_inbound,
)
from scheduler.cluster.order import HostOrder
from scheduler.errors import LinkError
from scheduler.link.dial import DialFailed, dial
from scheduler.link.framing import encode
from scheduler.link.hello import HelloRefused
from scheduler.user_cache import user_cache_folder

DIAL_SECONDS = 10.0
DEVICE_SECONDS = 15.0
"""For a predecessor whose front is gone without a word: its link's 9 seconds, and its end."""
DEVICE_VARIABLE = "PENSTOCK_DEVICE"
STARTED, FAILED = "started", "failed"
"""The first word of its one line on stdout; then its process id, or why it ends."""
_PRIVATE = ("PENSTOCK_", "RAY_")
"""Beginnings of variables that no engine needs, and that may be secrets."""
_DUMP_SECONDS = 1.0
"""Time for a hung engine to write its stacks."""
_GRACE_SECONDS = 2.0
"""Time for an engine whose link has ended, too, to leave by itself."""
_LAST_WORDS_SECONDS = 1.0
"""Time to read a dead engine's stderr; end of file may never come if it left a child process."""
_READ_BYTES = 1 << 16


class _FrontGone(Exception):
    """The front is gone, or does not want this engine any more."""


def main() -> NoReturn:
    arguments = argparse.ArgumentParser(prog="python -m scheduler.cluster.host")
    arguments.add_argument("--control", type=int, help="The connection; without it: connect, and detach.")
    control = arguments.parse_args().control
    text = sys.stdin.buffer.read()
    order = HostOrder.decode(text)
    host = socket.gethostname()
    environment = {**os.environ, **dict(order.environment)}
    if control is None:
        _connect_and_detach(order, host, text)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    Host(order, socket.socket(fileno=control), host, environment).run()
    os._exit(0)


def _connect_and_detach(order: HostOrder, host: str, text: bytes) -> NoReturn:
    try:
        control = dial(
            order.addresses, order.port, order.host_token, HOST_ROLE, host=host, seconds=DIAL_SECONDS
        )
    except (DialFailed, HelloRefused) as error:
        print(FAILED, error, flush=True)
        sys.exit(1)
    # Not a fork of this process: on macOS one that has looked up a name must not go on in a child.
    process = subprocess.Popen(
        [sys.executable, "-m", "scheduler.cluster.host", "--control", str(control.fileno())],
        pass_fds=[control.fileno()],
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    # From now on it has no parent that could end it, or would have to wait for it.
    print(STARTED, process.pid, flush=True)
    os._exit(0)


class Host:
    """One engine's life beside the front's connection."""

    def __init__(
        self, order: HostOrder, control: socket.socket, name: str, environment: Mapping[str, str]
    ) -> None:
        self._order = order
        self._control = control
        self._name = name
        self._environment = environment
        self._sending = threading.Lock()

    def run(self) -> None:
        """Return when the engine is gone, and the front knows of it if it is there."""
        try:
            engine = self._start()
        except _FrontGone:
            return
        except (DeviceBusy, DialFailed, HelloRefused, OSError) as error:
            self._send(NotStarted(str(error)))
            return
        assert engine.stdout is not None
        self._send(EngineStarted(engine.pid))
        relay = threading.Thread(target=self._relay, args=(engine.stdout.fileno(),), daemon=True)
        relay.start()
        threading.Thread(target=self._obey, args=(engine,), daemon=True).start()
        returncode = engine.wait()
        relay.join(_LAST_WORDS_SECONDS)
        self._send(EngineExited(returncode))
        if not relay.is_alive():
            engine.stdout.close()

    def _start(self) -> subprocess.Popen[bytes]:
        order = self._order
        device = self._environment.get(DEVICE_VARIABLE, "0")
        lock = lock_device(
            device,
            self._name,
            user_cache_folder(self._environment),
            f"process {os.getpid()}, an engine of the server at {order.addresses[0]}:{order.port}",
            DEVICE_SECONDS,
            self._pause,
        )
        link = dial(
            order.addresses,
            order.port,
            order.engine_token,
            ENGINE_ROLE,
            host=self._name,
            seconds=DIAL_SECONDS,
        )
        environment = {
            name: value for name, value in self._environment.items() if not name.startswith(_PRIVATE)
        }
        try:
            with link:
                return subprocess.Popen(
                    [sys.executable, "-m", "scheduler.engine", "--fd", str(link.fileno())],
                    # The engine has the device for as long as it lives, also without this process.
                    pass_fds=[link.fileno(), lock],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
        finally:
            os.close(lock)

    def _pause(self, seconds: float) -> None:
        """Raise _FrontGone if nobody waits for the engine any more."""
        readable, _, _ = select.select([self._control], [], [], seconds)
        if readable and not self._peek():
            raise _FrontGone

    def _peek(self) -> bytes:
        try:
            return self._control.recv(1, socket.MSG_PEEK)
        except OSError:
            return b""

    def _relay(self, stderr: int) -> None:
        """Send the engine's stderr on. When the front is slow, the engine waits as for any reader."""
        while data := os.read(stderr, _READ_BYTES):
            self._send(StderrOutput(data))

    def _obey(self, engine: subprocess.Popen[bytes]) -> None:
        """Carry the front's orders out until it is gone; then end the engine."""
        reader = host_inbound()
        with suppress(OSError, LinkError):
            while data := self._control.recv(_READ_BYTES):
                for order in reader.feed(data):
                    match order:
                        case AbortEngine():
                            # On SIGABRT its faulthandler writes the stacks of all threads, and the process
                            # ends. A stopped process handles no signal but SIGKILL until it continues.
                            engine.send_signal(signal.SIGABRT)
                            engine.send_signal(signal.SIGCONT)
                            _end(engine, _DUMP_SECONDS)
                        case KillEngine():
                            engine.kill()
        _end(engine, _GRACE_SECONDS)

    def _send(self, message: FromHost) -> None:
        with self._sending, suppress(OSError):
            self._control.sendall(encode(message))


def _end(engine: subprocess.Popen[bytes], seconds: float) -> None:
    """Kill it if it does not end by itself within this time."""
    try:
        engine.wait(seconds)
    except subprocess.TimeoutExpired:
        engine.kill()


if __name__ == "__main__":
    main()
