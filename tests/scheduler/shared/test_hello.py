"""Who is let in by a first frame: the token, a role that is waited for, this version."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import LinkError
from scheduler.shared.hello import (
    MOST_HELLO_BYTES,
    Hello,
    HelloRefused,
    check_hello,
    new_token,
    read_hello,
)
from scheduler.shared.messages import PROTOCOL_VERSION

TOKEN = new_token()


def hello(token: str = TOKEN, role: str = "engine", version: int = PROTOCOL_VERSION) -> Hello:
    return Hello(version, token, role, "mac-2")


@settings(deadline=None)
@given(st.text(max_size=80), st.sampled_from(["engine", "rank 1", ""]), st.integers(0, 99))
def test_only_an_engine_with_the_token_gets_in(token: str, role: str, version: int) -> None:
    """All strangers are refused in the same words, which say nothing of what is waited for."""
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


def test_tokens_are_long_and_all_different() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}


def test_no_log_line_shows_a_token() -> None:
    assert TOKEN not in repr(hello())


def test_a_later_version_may_add_fields() -> None:
    """They are ignored, so that its version can be read and named."""
    body = msgspec.msgpack.encode(["hello", PROTOCOL_VERSION + 1, "00", "host", "mac-2", {"new": 1}])
    assert read_hello(body).version == PROTOCOL_VERSION + 1


@settings(deadline=None)
@given(st.binary(max_size=MOST_HELLO_BYTES))
def test_garbage_is_a_link_error(body: bytes) -> None:
    try:
        found = read_hello(body)
    except LinkError:
        return
    assert isinstance(found, Hello)
