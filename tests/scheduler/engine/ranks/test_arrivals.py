"""Rank 0 lets in the ranks of its group, each once, and nobody else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from scheduler.engine.dial import dial
from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.ranks import arrivals as module
from scheduler.engine.ranks.arrivals import Arrived, arrivals
from scheduler.shared.framing import encode
from scheduler.shared.hello import Hello, HelloRefused, rank_role
from scheduler.shared.messages import PROTOCOL_VERSION, RankGroup

_TOKEN = "ab" * 32


class Waiting:
    """Rank 0 of three in a thread."""

    def __init__(self, seconds: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        control = f"127.0.0.1:{self.port}"
        self._group = RankGroup(3, "ring", ("a:1", "b:2", "c:3"), control, _TOKEN)
        self._found: list[Arrived] | LoadRefused = []
        self._thread = threading.Thread(target=self._wait, args=[seconds])
        self._thread.start()

    def _wait(self, seconds: float) -> None:
        try:
            self._found = arrivals(self._group, seconds)
        except LoadRefused as refused:
            self._found = refused

    def dialed(self, rank: int, token: str = _TOKEN) -> socket.socket:
        return dial(["127.0.0.1"], self.port, token, rank_role(rank), host=f"mac-{rank}", seconds=10)

    def connected(self) -> socket.socket:
        """A stranger."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=10)
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def result(self) -> list[Arrived]:
        self._thread.join(30)
        assert not self._thread.is_alive()
        if isinstance(self._found, LoadRefused):
            raise self._found
        return self._found


@contextmanager
def waiting(seconds: float = 20.0) -> Iterator[Waiting]:
    rank_0 = Waiting(seconds)
    yield rank_0
    with suppress(LoadRefused):
        for arrived in rank_0.result():
            arrived.link.close()


def test_ranks_are_in_their_order_whichever_comes_first() -> None:
    with waiting() as rank_0:
        dialed = {rank: rank_0.dialed(rank) for rank in (2, 1)}
        found = rank_0.result()
        assert [one.host for one in found] == ["mac-1", "mac-2"]
        for rank, one in enumerate(found, 1):
            dialed[rank].sendall(b"me")
            assert one.link.recv(2) == b"me"
            dialed[rank].close()


def test_strangers_and_second_ones_are_refused_and_keep_nobody_out() -> None:
    """A wrong token, garbage, silence, and a rank that is there already."""
    with waiting() as rank_0:
        silent, rude = rank_0.connected(), rank_0.connected()
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
        first = rank_0.dialed(1)
        for rank, token in ((1, _TOKEN), (2, "cd" * 32), (3, _TOKEN)):
            with pytest.raises(HelloRefused, match="token"):
                rank_0.dialed(rank, token)
        with suppress(ConnectionResetError):
            assert rude.recv(1) == b""
        second = rank_0.dialed(2)
        assert len(rank_0.result()) == 2
        for link in (silent, rude, first, second):
            link.close()


def test_a_silent_stranger_is_closed_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_SECONDS", 0.05)
    with waiting(2.0) as rank_0:
        with rank_0.connected() as silent:
            assert silent.recv(1) == b""
        with pytest.raises(LoadRefused):
            rank_0.result()


def test_those_that_do_not_come_are_named() -> None:
    with waiting(1.0) as rank_0, rank_0.dialed(1), pytest.raises(LoadRefused, match=r"^rank 2 did not"):
        rank_0.result()


def test_another_version_is_refused_by_name() -> None:
    with waiting() as rank_0, rank_0.connected() as old:
        old.sendall(encode(Hello(PROTOCOL_VERSION - 1, _TOKEN, rank_role(1), "mac-1")))
        with pytest.raises(LoadRefused, match="rank 1: host mac-1 speaks protocol"):
            rank_0.result()
