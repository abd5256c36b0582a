"""One engine on one device: a lock that the system releases when the process that has it is gone.

Engines that dial a server take it before they dial; those that a server starts as its own children do not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from pathlib import Path

_PAUSE_SECONDS = 0.1
_MOST_HOLDER_BYTES = 1024


class DeviceBusy(Exception):
    """Another engine has the device (`held`), or the lock cannot be made: a sentence for the operator."""

    def __init__(self, reason: str, *, held: bool = False) -> None:
        super().__init__(reason)
        self.held = held


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
        _wait(lock, device, host, seconds)
        os.ftruncate(lock, 0)
        os.pwrite(lock, holder.encode()[:_MOST_HOLDER_BYTES], 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _wait(lock: int, device: str, host: str, seconds: float) -> None:
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
        time.sleep(_PAUSE_SECONDS)
