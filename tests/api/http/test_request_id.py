"""Request ids: one short printable word, whatever a client sends."""

from __future__ import annotations

import json
import re

import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from api.http.request_id import ECHOED_IN, MAX_CHARACTERS, echoed, request_id_of
from tests.api.http.wire import echo, serving

OURS = re.compile(r"req_[0-9a-f]{24}")


@pytest.mark.parametrize(
    "given_id",
    ["a", "7f3c0e1a-8d2b-4f6e-9a57-0c1d2e3f4a5b", "svc/job:7+x=1@eu~2.3_4-5", "x" * MAX_CHARACTERS],
)
def test_a_clients_own_id_is_taken_as_it_is(given_id: str) -> None:
    """The first of several counts."""
    headers = [(b"host", b"x"), (b"x-request-id", given_id.encode()), (b"x-request-id", b"second")]
    assert request_id_of(headers) == given_id


@given(st.binary(max_size=200))
def test_whatever_else_is_sent_ours_takes_its_place(value: bytes) -> None:
    """An accepted id is printable ASCII without spaces, quotes or line breaks, and short; there is always
    one."""
    taken = request_id_of([(b"x-request-id", value)])
    assert re.fullmatch(r"[A-Za-z0-9._~:/+=@-]{1,128}", taken)
    assert taken.encode() == value or OURS.fullmatch(taken)
    assert echoed(taken) == [(name, taken.encode()) for name in ECHOED_IN]


@trio_test
async def test_what_the_server_answers_by_itself_has_a_name_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """In both headers and in the body."""
    async with serving(echo) as site:
        response = await site.connect().ask(b"nonsense\r\n\r\n")
    sent = response.headers["x-request-id"]
    assert OURS.fullmatch(sent)
    assert response.headers["request-id"] == json.loads(response.body)["request_id"] == sent
