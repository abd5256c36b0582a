"""What a service manager hears of the process: systemd's sd_notify, one datagram a message."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import trio

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class ServiceNotice:
    """Tells a service manager what happens; without one it sends nothing. No message waits for the receiver
    or raises."""

    def __init__(self, address: str | None = None, watchdog_seconds: float | None = None) -> None:
        """`address`: of a Unix datagram socket; one that begins with @ is abstract. `watchdog_seconds`: the
        longest silence that the manager takes for life."""
        self._address = address if not (address or "").startswith("@") else f"\0{(address or '')[1:]}"
        self.watchdog_seconds = watchdog_seconds

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> ServiceNotice:
        """Take the variables out of `environment`: processes started from here have nothing to report."""
        address = environment.pop(_SOCKET, None)
        microseconds, pid = environment.pop(_WATCHDOG, ""), environment.pop(_WATCHDOG_PID, "")
        is_ours = pid in ("", str(os.getpid()))
        watched = address and microseconds.isdigit() and int(microseconds) > 0 and is_ours
        return cls(address, int(microseconds) / 1e6 if watched else None)

    def send(self, **fields: str) -> bool:
        """Send `READY="1"` and the like, each value on one line. Return whether a service manager receives
        it."""
        if not self._address:
            return False
        data = "\n".join(f"{name}={' '.join(value.split())}" for name, value in fields.items()).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(data, self._address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full buffer is not an absent reader.
            return True
        return True

    async def keep_alive(self) -> bool:
        """Report life twice in the time after which the manager would kill the process: an event loop that
        hangs reports nothing. Return False where none watches, and True when the manager is gone."""
        missed = 0
        while self.watchdog_seconds is not None:
            missed = 0 if self.send(WATCHDOG="1") else missed + 1
            # A single failed send may be the manager restarting.
            if missed > 1:
                return True
            await trio.sleep(self.watchdog_seconds / 2)
        return False
