"""sd_notify: what a service manager hears, and what happens where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.http.service_manager import ServiceNotice


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    # Not in tmp_path: a socket's path has at most 103 bytes on macOS, whose TMPDIR has 49.
    with (
        TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.setblocking(False)
        receiver.bind(f"{folder}/notify")
        yield receiver


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), "KEPT": "1", **more}


def test_a_message_is_one_datagram_of_lines(manager: socket.socket) -> None:
    assert ServiceNotice.of(environment(manager)).send(READY="1", STATUS="two\nlines")
    assert manager.recv(4096) == b"READY=1\nSTATUS=two lines"


def test_processes_started_from_here_report_nothing(manager: socket.socket) -> None:
    """The engine inherits the environment."""
    given = environment(manager, WATCHDOG_USEC="1000000", WATCHDOG_PID=str(os.getpid()))
    assert ServiceNotice.of(given).watchdog_seconds == 1.0
    assert given == {"KEPT": "1"}


@pytest.mark.parametrize(
    "watchdog", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]
)
def test_not_every_manager_watches(manager: socket.socket, watchdog: dict[str, str]) -> None:
    assert ServiceNotice.of(environment(manager, **watchdog)).watchdog_seconds is None


def test_an_abstract_name_begins_with_an_at_sign() -> None:
    name = f"penstock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        try:
            receiver.bind(f"\0{name}")
        except OSError:
            pytest.skip("no abstract sockets on this system")
        ServiceNotice.of({"NOTIFY_SOCKET": f"@{name}"}).send(READY="1")
        assert receiver.recv(4096) == b"READY=1"


@trio_test
async def test_life_is_reported_twice_in_the_watchdogs_time(
    autojump_clock: trio.testing.MockClock, manager: socket.socket
) -> None:
    notice = ServiceNotice.of(environment(manager, WATCHDOG_USEC="30000000"))
    with trio.move_on_after(44):
        await notice.keep_alive()
    for _ in range(3):
        assert manager.recv(4096) == b"WATCHDOG=1"
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


@trio_test
async def test_a_manager_that_is_gone_is_noticed(
    autojump_clock: trio.testing.MockClock, manager: socket.socket
) -> None:
    """A server without its manager would hold the port and the memory of the next one."""
    notice = ServiceNotice.of(environment(manager, WATCHDOG_USEC="30000000"))
    async with trio.open_nursery() as nursery:

        async def die() -> None:
            await trio.sleep(40)
            manager.close()

        nursery.start_soon(die)
        assert await notice.keep_alive()
    assert trio.current_time() == 60


@trio_test
async def test_nobody_watches_nobody_waits(autojump_clock: trio.testing.MockClock) -> None:
    assert not await ServiceNotice().keep_alive()
