"""A link's first frame: who is let in by it; whole, a kilobyte at most, and within its time."""

from __future__ import annotations

import socket

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import LinkError
from scheduler.shared.framing import LENGTH_BYTES
from scheduler.shared.hello import (
    MOST_HELLO_BYTES,
    Hello,
    HelloRefused,
    check_hello,
    new_token,
    read_first_frame,
    read_hello,
)
from scheduler.shared.messages import PROTOCOL_VERSION

TOKEN = new_token()


def hello(token: str = TOKEN, role: str = "engine", version: int = PROTOCOL_VERSION) -> Hello:
    return Hello(version, token, role, "mac-2")


@settings(deadline=None)
@given(st.text(max_size=80), st.sampled_from(["engine", "rank 1", ""]), st.integers(0, 99))
def test_only_an_engine_with_the_token_gets_in(token: str, role: str, version: int) -> None:
    """All strangers are refused in the same words, which say nothing of what is waited for. No token is in
    the log."""
    assert TOKEN not in repr(hello())
    assert len(bytes.fromhex(TOKEN)) == 32
    check_hello(hello(), TOKEN)
    for stranger in (hello(token, role, version), hello(role="rank 3")):
        with pytest.raises(HelloRefused, match=r"^its token is wrong, or nobody waits for it$"):
            check_hello(stranger, TOKEN)


def test_another_version_is_refused_by_name() -> None:
    """Only for those with the token."""
    ahead = PROTOCOL_VERSION + 1
    sentence = f"host mac-2 speaks protocol {ahead}, this server {PROTOCOL_VERSION}"
    with pytest.raises(HelloRefused, match=sentence):
        check_hello(hello(version=ahead), TOKEN)
    with pytest.raises(HelloRefused, match="its token is wrong"):
        check_hello(hello(new_token(), version=ahead), TOKEN)


def test_a_later_version_may_add_fields() -> None:
    """They are ignored, so that its version can be read and named."""
    body = msgspec.msgpack.encode(["hello", PROTOCOL_VERSION + 1, "00", "host", "mac-2", {"new": 1}])
    assert read_hello(body).version == PROTOCOL_VERSION + 1


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


def test_a_byte_now_and_then_does_not_extend_the_time() -> None:
    with Peer(framed(bytes(100)), most=1, pause_seconds=0.75) as peer:
        with pytest.raises(TimeoutError):
            read_first_frame(peer, 3.0, peer.clock)
        assert peer.now == 3.0
