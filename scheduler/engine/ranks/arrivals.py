"""The other ranks' connections from other machines: rank 0 listens, each comes with the group's token.

An unidentified connection holds one of 64 threads for at most a second. A rank that has come is known by its
number, and no second one is let in for it.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from scheduler.engine.load_failure import LoadRefused
from scheduler.errors import LinkError
from scheduler.shared.first_frame import read_first_frame
from scheduler.shared.framing import encode
from scheduler.shared.hello import (
    HelloRefused,
    HelloReply,
    OtherProtocol,
    check_hello,
    rank_role,
    read_hello,
)
from scheduler.shared.keep_alive import keep_alive
from scheduler.shared.messages import PROTOCOL_VERSION, RankGroup

ARRIVAL_SECONDS = 120.0
"""Bound on the time until all ranks are there: a machine may have to wait for its device."""
HELLO_SECONDS = 1.0
MOST_UNIDENTIFIED = 64
_LOOK_SECONDS = 0.05
"""Time between two looks at who has been identified."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A rank on another machine. Its process ends with this connection."""

    link: socket.socket
    host: str

    def ending(self) -> str:
        return f"on {self.host} closed its connection"

    def end(self) -> None:
        with suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)


def arrivals(group: RankGroup, seconds: float = ARRIVAL_SECONDS) -> list[Arrived]:
    """Return the connections of ranks 1 and up, in their order. Raise LoadRefused, which names those that did
    not come, or are not let in."""
    host, _, port = group.control.rpartition(":")
    try:
        listener = socket.create_server((host, int(port)), backlog=MOST_UNIDENTIFIED)
    except OSError as error:
        raise LoadRefused(
            f"rank 0 cannot listen on {group.control} ({error}): give it an address of its machine"
        ) from error
    with listener:
        return _Reception(group).all_of(listener, time.monotonic() + seconds)


class _Reception:
    def __init__(self, group: RankGroup) -> None:
        self._missing = {rank_role(rank): rank for rank in range(1, group.ranks)}
        self._awaited = set(self._missing)
        """Roles of which no connection has been let in."""
        self._token = group.token
        self._control = group.control
        self._deciding = threading.Lock()
        self._unidentified = threading.BoundedSemaphore(MOST_UNIDENTIFIED)
        self._arrived: queue.SimpleQueue[tuple[str, Arrived | str]] = queue.SimpleQueue()
        """Arrivals by role; a text is the reason why a process with the right token is refused."""

    def all_of(self, listener: socket.socket, deadline: float) -> list[Arrived]:
        found: dict[int, Arrived] = {}
        try:
            while self._missing:
                if (left := deadline - time.monotonic()) <= 0:
                    names = ", ".join(self._missing)
                    raise LoadRefused(f"{names} did not come to {self._control} in time: is it running?")
                listener.settimeout(min(left, _LOOK_SECONDS))
                with suppress(TimeoutError):
                    self._receive(listener.accept()[0])
                self._take(found)
        except LoadRefused:
            for arrived in found.values():
                arrived.link.close()
            raise
        return [found[rank] for rank in sorted(found)]

    def _take(self, found: dict[int, Arrived]) -> None:
        while not self._arrived.empty():
            role, arrived = self._arrived.get()
            if isinstance(arrived, str):
                raise LoadRefused(f"{role}: {arrived}")
            found[self._missing.pop(role)] = arrived

    def _receive(self, link: socket.socket) -> None:
        if not self._unidentified.acquire(blocking=False):
            link.close()
            return
        threading.Thread(target=self._identify, args=[link], daemon=True).start()

    def _identify(self, link: socket.socket) -> None:
        try:
            hello = read_hello(read_first_frame(link, time.monotonic() + HELLO_SECONDS))
            try:
                with self._deciding:
                    check_hello(hello, self._token, *self._awaited)
                    self._awaited.discard(hello.role)
            except HelloRefused as refused:
                link.sendall(encode(HelloReply(PROTOCOL_VERSION, str(refused))))
                link.close()
                if isinstance(refused, OtherProtocol):
                    self._arrived.put((hello.role, str(refused)))
                return
            link.sendall(encode(HelloReply(PROTOCOL_VERSION)))
            keep_alive(link.setsockopt)
            link.settimeout(None)
            self._arrived.put((hello.role, Arrived(link, hello.host)))
        except (OSError, LinkError):
            link.close()
        finally:
            self._unidentified.release()
