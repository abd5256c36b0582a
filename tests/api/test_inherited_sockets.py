"""`--listen-fds`: sockets that somebody else opened, and what is no such socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from trio.testing import trio_test

from api.inherited_sockets import inherited_listeners
from api.options import load
from scheduler.errors import OptionError, StartupError


@trio_test
async def test_what_waits_in_the_backlog_is_accepted() -> None:
    """Also a connection that came before; and closing one holder's socket leaves the other's open."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        with socket.create_connection(opened.getsockname()) as early:
            (listener,) = inherited_listeners([os.dup(opened.fileno())], 0, "--listen-fds")
            async with await listener.accept() as accepted:
                early.sendall(b"x")
                assert await accepted.receive_some(1) == b"x"
        assert not os.get_inheritable(listener.socket.fileno())
        await listener.aclose()
        with socket.create_connection(opened.getsockname()):
            assert opened.accept()[0].detach()


def test_another_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
        with pytest.raises(StartupError, match=rf"--listen-fds: .* listens on port {port}, not on 1"):
            inherited_listeners([opened.fileno()], 1, "--listen-fds")


def test_what_does_not_listen_is_refused(tmp_path: Path) -> None:
    with (
        socket.socket() as idle,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local,
        open(tmp_path / "file", "w") as file,
    ):
        for one in (idle, local):
            with pytest.raises(StartupError, match="no listening TCP socket"):
                inherited_listeners([one.fileno()], 0, "--listen-fds")
        with pytest.raises(StartupError, match="is no socket"):
            inherited_listeners([file.fileno()], 0, "--listen-fds")
    with pytest.raises(StartupError, match="is no socket"):
        inherited_listeners([9999], 0, "--metrics-listen-fds")


@pytest.mark.parametrize("text", ["2", "x", "3,-4", "٣"])
def test_only_numbers_of_descriptors_are_taken(text: str) -> None:
    with pytest.raises(OptionError, match="--listen-fds"):
        load({"listen_fds": text})


def test_several_addresses_have_a_socket_each() -> None:
    assert load({"listen_fds": "3, 4"}).inherited_sockets() == [3, 4]
    assert load({}).inherited_sockets() == []
