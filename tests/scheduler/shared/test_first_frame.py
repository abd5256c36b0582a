"""The first frame of a link: whole, a kilobyte at most, not a byte of what follows, and within its time."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import LinkError
from scheduler.shared.first_frame import read_first_frame
from scheduler.shared.framing import LENGTH_BYTES
from scheduler.shared.hello import MOST_HELLO_BYTES


class Peer(socket.socket):
    """Sends `data` in pieces of at most `most` bytes, each after `pause_seconds` of `clock`, and ends."""

    def __init__(self, data: bytes, most: int = 1 << 20, pause_seconds: float = 0.0) -> None:
        super().__init__()
        self.rest, self._most, self._pause_seconds = data, most, pause_seconds
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        timeout = self.gettimeout()
        assert timeout is not None
        assert timeout > 0
        if self._pause_seconds > timeout:
            self.now += timeout
            raise TimeoutError("timed out")
        self.now += self._pause_seconds
        count = min(bufsize, self._most)
        piece, self.rest = self.rest[:count], self.rest[count:]
        return piece


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


@given(st.binary(max_size=MOST_HELLO_BYTES), st.integers(1, 2000), st.binary(max_size=20))
def test_the_body_comes_whole_and_what_follows_is_not_touched(body: bytes, most: int, after: bytes) -> None:
    with Peer(framed(body) + after, most) as peer:
        assert read_first_frame(peer, 1.0, peer.clock) == body
        assert peer.rest == after


@given(st.integers(MOST_HELLO_BYTES + 1, 2 ** (8 * LENGTH_BYTES) - 1), st.integers(1, LENGTH_BYTES))
def test_a_frame_that_no_hello_is_as_long_as_is_refused_by_its_length(length: int, most: int) -> None:
    """Not a byte of it is read."""
    with Peer(length.to_bytes(LENGTH_BYTES, "big") + b"x", most) as peer:
        with pytest.raises(LinkError, match=f"announces {length} bytes"):
            read_first_frame(peer, 1.0, peer.clock)
        assert peer.rest == b"x"


@pytest.mark.parametrize("sent", [b"", b"\0\0", framed(b"whole")[:-1]])
def test_a_connection_that_ends_early_is_a_link_error(sent: bytes) -> None:
    with Peer(sent) as peer, pytest.raises(LinkError, match="closed the connection"):
        read_first_frame(peer, 1.0, peer.clock)


def test_a_byte_now_and_then_does_not_extend_the_time() -> None:
    with Peer(framed(bytes(100)), most=1, pause_seconds=0.75) as peer:
        with pytest.raises(TimeoutError):
            read_first_frame(peer, 3.0, peer.clock)
        assert peer.now == 3.0
