"""Kinds of bodies: JSON whatever its client calls it, and never compressed."""

from __future__ import annotations

import json

import pytest
from trio.testing import MockClock, trio_test

from tests.api.client import chat, client_of
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running


@pytest.mark.parametrize("named", [None, "application/x-www-form-urlencoded", "text/plain", "a/b; charset=c"])
@trio_test
async def test_a_body_is_json_whatever_its_client_calls_it(
    named: str | None, autojump_clock: MockClock
) -> None:
    """`curl -d` says that it is a form. One that is none of it is named in the same words."""
    scheduler = make_scheduler(Playback("ok"))
    headers = {} if named is None else {"content-type": named}
    async with running(scheduler), client_of(scheduler) as client:
        answers = [
            await client.post("/v1/chat/completions", content=body, headers=headers)
            for body in (json.dumps(chat()).encode(), b"model=a&messages=b")
        ]
    assert [one.status_code for one in answers] == [200, 400]
    assert "not JSON" in answers[1].json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-gzip", "br", "zstd", "identity, gzip"])
@trio_test
async def test_a_compressed_body_is_a_415_that_names_its_encoding(
    encoding: str, autojump_clock: MockClock
) -> None:
    """In the client's dialect, and before the body is read. One that says it is plain is read."""
    scheduler = make_scheduler(Playback("ok"))
    async with running(scheduler), client_of(scheduler) as client:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            for named, status in ((encoding, 415), ("Identity", 400), ("", 400)):
                answer = await client.post(path, content=b"\x28", headers={"content-encoding": named})
                assert answer.status_code == status
                if status == 415:
                    assert repr(encoding) in answer.json()["error"]["message"]
                    assert answer.headers["accept-encoding"] == "identity"
