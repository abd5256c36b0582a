"""`penstock` commands forked from a process that has imported all that a server imports.

Imports are nine tenths of the CPU time that a server takes to start, and `make test-all` starts a hundred.
What is forked runs the same `main` with the same arguments, environment and streams. Servers that tests start
by other commands (`penstock bench`, `penstock service`, a shell) are started as a user starts them, as
are those whose environment would change the interpreter, and on macOS all: its frameworks do not survive a
fork.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from tests.repo.tree import ROOT

_IMPORTED = (
    "api.assembly",
    "api.cli.serve_command",
    "api.serving",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen2.tokenization_qwen2",
)
_MESSAGE_BYTES = 1 << 20
_PREPARING_SECONDS = 100
"""A bound on what hangs."""


class Penstock:
    """What tests use of `subprocess.Popen`, for a process that a `_Template` has forked."""

    def __init__(self, ends: socket.socket, stdout: int, stderr: int) -> None:
        self._ends = ends
        self._reading = threading.Lock()
        self.returncode: int | None = None
        self.stdout = os.fdopen(stdout, encoding="utf-8")
        self.stderr = os.fdopen(stderr, encoding="utf-8")
        self.pid = int(self._number(_PREPARING_SECONDS))

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raise subprocess.TimeoutExpired."""
        with self._reading:
            if self.returncode is None:
                self.returncode = self._number(timeout)
                self._ends.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self, timeout: float | None) -> int:
        self._ends.settimeout(timeout)
        try:
            return int(self._ends.recv(_MESSAGE_BYTES))
        except (BlockingIOError, TimeoutError):
            raise subprocess.TimeoutExpired("penstock", timeout or 0) from None


def start_penstock(
    *arguments: str, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> Penstock | subprocess.Popen[str]:
    """Start `penstock ARGUMENTS` with these variables beside our own, and without standard input. If shell
    commands must come `before`, a shell starts it."""
    whole = {**os.environ, **(environment or {})}
    if before or sys.platform == "darwin" or not _template().has_interpreter_of(whole):
        shell = ("sh", "-c", "; ".join([*before, 'exec "$@"']), "sh") if before else ()
        return subprocess.Popen(
            [*shell, sys.executable, "-m", "api", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**whole, "PYTHONUNBUFFERED": "1"},
        )
    return _template().start(arguments, whole)


def run_penstock(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a `penstock` that is expected to end by itself."""
    process = start_penstock(*arguments, environment=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    written: list[str] = []
    errors = process.stderr
    reader = threading.Thread(target=lambda: written.append(errors.read()))
    watchdog = threading.Timer(timeout, process.kill)
    watchdog.start()
    with process.stdout, errors:
        reader.start()
        stdout = process.stdout.read()
        reader.join()
    watchdog.cancel()
    return subprocess.CompletedProcess(arguments, process.wait(timeout), stdout, *written)


class _Template:
    """The process that has imported everything; one for each process of tests."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**self._environment, "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"},
        )
        theirs.close()
        atexit.register(self._end)

    def has_interpreter_of(self, environment: Mapping[str, str]) -> bool:
        """Return whether Python would be the same with these variables: it reads some only when it starts."""
        names = self._environment.keys() | environment.keys()
        return all(
            self._environment.get(name) == environment.get(name)
            for name in names
            if name.startswith(("PYTHON", "LD_"))
        )

    def start(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> Penstock:
        ends, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (out, out_in), (err, err_in) = os.pipe(), os.pipe()
        order = json.dumps({"arguments": arguments, "environment": dict(environment), "folder": os.getcwd()})
        socket.send_fds(self._orders, [order.encode()], [theirs.fileno(), out_in, err_in])
        theirs.close()
        os.close(out_in)
        os.close(err_in)
        return Penstock(ends, out, err)

    def _end(self) -> None:
        self._orders.close()
        self._process.wait(_PREPARING_SECONDS)


@cache
def _template() -> _Template:
    return _Template()


def _obey(orders: socket.socket) -> None:
    """Fork for each order until the tests end. Return in a forked process when it is to exit, too."""
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # of those that wait in `_watch` nobody asks how they ended
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE_BYTES, 3)
        if not order:
            return
        if os.fork() == 0:
            orders.close()
            _watch(json.loads(order), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(order: dict[str, Any], ends: int, out: int, err: int) -> None:
    """Fork once more, and tell the test which process it is and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    teller = socket.socket(fileno=ends)
    if (pid := os.fork()) == 0:
        teller.close()
        _become(order, out, err)
        return
    os.close(out)
    os.close(err)
    teller.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # the test has gone
        teller.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(order: dict[str, Any], out: int, err: int) -> None:
    """Be the command, with what the interpreter sets when it starts."""
    for source, target in ((out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdout = sys.__stdout__ = _text(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2)  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = ["penstock", *order["arguments"]]
    from api.cli.command_line import main

    main()


def _text(descriptor: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), encoding="utf-8", write_through=True)


if __name__ == "__main__":
    _obey(socket.socket(fileno=int(sys.argv[1])))
