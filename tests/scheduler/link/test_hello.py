"""Who is let in by a first frame: one connection for each token, in its role, in this version."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import LinkError
from scheduler.link.hello import (
    MOST_HELLO_BYTES,
    Expectations,
    Expected,
    Hello,
    HelloRefused,
    read_hello,
    version_refusal,
)
from scheduler.link.messages import PROTOCOL_VERSION

ROLES = ("host", "engine")


def hello(token: str, role: str = "host", version: int = PROTOCOL_VERSION) -> Hello:
    return Hello(version, token, role, "mac-2")


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(["expect", "forget", "right", "wrong role", "guess"]), st.integers(0)))
)
def test_a_token_lets_one_connection_in_while_it_is_waited_for(steps: list[tuple[str, int]]) -> None:
    """Whatever comes in whatever order: each Hello gets the one place that waits for its token and role, and
    nobody gets it again."""
    expectations: Expectations[Expected] = Expectations()
    waiting: list[Expected] = []
    spent: list[Expected] = [Expected("host")]
    for step, number in steps:
        one = waiting[number % len(waiting)] if waiting else spent[number % len(spent)]
        if step == "expect":
            waiting.append(Expected(ROLES[number % 2]))
            expectations.add(waiting[-1])
        elif step == "right" and waiting:
            assert expectations.take(hello(one.token, one.role)) is one
            waiting.remove(one)
            spent.append(one)
        elif step == "forget" and waiting:
            expectations.forget(one)
            waiting.remove(one)
            spent.append(one)
        else:
            other = {"host": "engine", "engine": "host"}[one.role]
            guess = spent[number % len(spent)]
            attempt = hello(one.token, other) if step == "wrong role" else hello(guess.token, guess.role)
            with pytest.raises(HelloRefused):
                expectations.take(attempt)
        assert len(expectations) == len(waiting)


def test_tokens_are_long_and_all_different() -> None:
    tokens = {Expected("host").token for _ in range(100)}
    assert len(tokens) == 100
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}


def test_no_log_line_shows_a_token() -> None:
    """Neither of what is waited for nor of what has come."""
    expected = Expected("host")
    assert expected.token not in repr(expected)
    assert expected.token not in repr(hello(expected.token))


def test_another_version_is_refused_by_name() -> None:
    assert version_refusal(hello("", version=PROTOCOL_VERSION)) == ""
    ahead = PROTOCOL_VERSION + 1
    assert version_refusal(hello("", version=ahead)) == (
        f"host mac-2 speaks protocol {ahead}, this server {PROTOCOL_VERSION}"
    )


def test_a_later_version_may_add_fields() -> None:
    """They are ignored, so that its version can be read and named."""
    body = msgspec.msgpack.encode(["hello", PROTOCOL_VERSION + 1, "00", "host", "mac-2", {"new": 1}])
    assert read_hello(body).version == PROTOCOL_VERSION + 1


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=MOST_HELLO_BYTES))
def test_garbage_is_a_link_error(body: bytes) -> None:
    try:
        found = read_hello(body)
    except LinkError:
        return
    assert isinstance(found, Hello)
