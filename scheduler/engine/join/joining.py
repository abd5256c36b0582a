"""Offer this machine's device to a server elsewhere: `python -m scheduler.engine --join HOST:PORT`.

The process takes the lock on the device, which the system releases when the process that has it is gone,
dials the server with its token, and is then an engine like one on a socket pair: it loads what the server
names, and ends with its link. What keeps it alive (systemd, launchd, an actor of Ray) starts it again. Those
that a server starts as its own children take no lock. Without trio.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import fcntl
import math
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from scheduler.engine.join.dial import DialFailed, dial
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.errors import OptionError
from scheduler.shared.hello import ENGINE_ROLE, HelloRefused
from scheduler.shared.own_path import with_own_path
from scheduler.shared.user_cache import user_cache_folder

TOKEN_VARIABLE = "PENSTOCK_JOIN_TOKEN"
"""The server's token. Never an argument, which other users of the machine can read."""
GAVE_UP, REFUSED = "gave up", "refused"
"""Beginnings of this process's last line: the server could not be reached in the time given, or it refuses
this engine. Another attempt would end alike."""
_PRIVATE = ("PENSTOCK_", "RAY_")
"""Beginnings of variables that no engine needs, and that may be secrets."""
_NOTICE_SECONDS = 60.0
"""Time between two lines that name what this process waits for."""
_DIAL_SECONDS = 5.0
_HUNG_SECONDS = 60.0
"""The process ends when a thread holds the interpreter for this long, which keeps the thread that reads the
link from ending the process. What MLX computes, and what hashes or reads weights, releases it."""
_LOCK_PAUSE_SECONDS = 0.1
_MOST_HOLDER_BYTES = 1024


class DeviceBusy(Exception):
    """Another engine has the device (`held`), or the lock cannot be made: a sentence for the operator."""

    def __init__(self, reason: str, *, held: bool = False) -> None:
        super().__init__(reason)
        self.held = held


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--join", metavar="HOST:PORT", help="The server's port for engines.")
    parser.add_argument("--device", default="0", help="Which of this machine's devices, for the lock on it.")
    parser.add_argument(
        "--name", default="", help="This machine's name at the server; by default its host name."
    )
    parser.add_argument("--blas", default="auto", choices=("auto", "off"), help="On a plain Linux CPU.")
    parser.add_argument("--give-up-seconds", type=float, default=math.inf, help="For reaching the server.")


def join(options: argparse.Namespace) -> socket.socket:
    """Return the connection to the server, once it has let this process in. End the process if that fails."""
    try:
        addresses, port = _address(options.join)
        _preload(options.blas)
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise OptionError(f"the server's token is not in the environment: {TOKEN_VARIABLE}")
        host, device = socket.gethostname(), options.device
        name = options.name or (host if device == "0" else f"{host}:{device}")
        _lock(device, host, f"the server at {options.join}")
        link = _dial(addresses, port, token, name, options.give_up_seconds)
    except (OptionError, DeviceBusy) as error:
        _end(str(error))
    except DialFailed as error:
        _end(f"{GAVE_UP}: {error}")
    except HelloRefused as refused:
        _end(f"{REFUSED} by the server at {options.join}: {refused}")
    print(f"joined the server at {options.join} as {name}", flush=True)
    for variable in [name for name in os.environ if name.startswith(_PRIVATE)]:
        del os.environ[variable]
    threading.Thread(target=_watch_interpreter, daemon=True).start()
    return link


def _address(text: str) -> tuple[tuple[str, ...], int]:
    """Return the addresses and the port of `HOST:PORT` or `HOST,HOST:PORT`. Raise OptionError."""
    hosts, _, port = text.rpartition(":")
    if not hosts or not port.isdecimal():
        raise OptionError(f"--join takes HOST:PORT, not {text!r}")
    return tuple(host.strip("[]") for host in hosts.split(",")), int(port)


def _preload(blas: str) -> None:
    """Run this program again with the fast BLAS, which the dynamic linker has to load first."""
    if blas == "off" or os.environ.get("LD_PRELOAD"):
        return
    environment = prepare(user_cache_folder(os.environ)).environment(os.environ)
    if environment != dict(os.environ):
        command = [sys.executable, "-m", "scheduler.engine", *sys.argv[1:]]
        os.execve(sys.executable, command, with_own_path(environment))


def _lock(device: str, host: str, server: str) -> None:
    """Hold the device until this process ends. Waits for an engine that has it, and reports that. Raise
    DeviceBusy."""
    holder = f"process {os.getpid()}, an engine of {server}"
    while True:
        try:
            lock_device(device, host, user_cache_folder(os.environ), holder, _NOTICE_SECONDS)
            return
        except DeviceBusy as busy:
            if not busy.held:
                raise
            print(f"waiting: {busy}", flush=True)


def lock_device(device: str, host: str, folder: Path, holder: str, seconds: float) -> int:
    """Return a descriptor that holds the device for as long as it is open.

    Waits for `seconds` for a predecessor to end. `holder`: the text by which a successor names this process.
    `host` is part of the lock's name, for home folders that several machines have. Raise DeviceBusy.
    """
    path = folder / "devices" / re.sub(r"[^A-Za-z0-9._-]+", "-", f"{host}-{device}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DeviceBusy(f"device {device!r} of {host} cannot be locked: {error}") from error
    try:
        _wait_for_device(lock, device, host, seconds)
        os.ftruncate(lock, 0)
        os.pwrite(lock, holder.encode()[:_MOST_HOLDER_BYTES], 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _wait_for_device(lock: int, device: str, host: str, seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise DeviceBusy(f"device {device!r} of {host} cannot be locked: {error}") from error
        else:
            return
        if time.monotonic() >= give_up_at:
            holder = os.pread(lock, _MOST_HOLDER_BYTES, 0).decode("utf-8", "replace")
            raise DeviceBusy(
                f"device {device!r} of {host} is in use by {holder or 'another engine'}", held=True
            )
        time.sleep(_LOCK_PAUSE_SECONDS)


def _dial(addresses: tuple[str, ...], port: int, token: str, name: str, seconds: float) -> socket.socket:
    """Dial for `seconds`, and print from time to time what it waits for. Raise DialFailed or HelloRefused."""
    give_up_at, notice_at = time.monotonic() + seconds, 0.0
    while True:
        left = min(_DIAL_SECONDS, give_up_at - time.monotonic())
        try:
            return dial(addresses, port, token, ENGINE_ROLE, host=name, seconds=max(0.0, left))
        except DialFailed as error:
            now = time.monotonic()
            if now >= give_up_at:
                raise
            if now >= notice_at:
                notice_at = now + _NOTICE_SECONDS
                print(f"waiting: {error}", flush=True)


def _watch_interpreter() -> None:
    """End this process, with the stacks of all threads, when one of them does not release the
    interpreter: the timer is a thread of C, which needs none."""
    while True:
        faulthandler.dump_traceback_later(_HUNG_SECONDS, exit=True)
        time.sleep(_HUNG_SECONDS / 10)


def _end(reason: str) -> NoReturn:
    print(reason, flush=True)
    sys.exit(1)
