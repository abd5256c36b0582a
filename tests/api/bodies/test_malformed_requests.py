"""Values and kinds of bodies that one route refuses: 400 or 415, and the engine gets none of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from tests.api.client import chat, client_of
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.answer.notations import form


async def post(bodies: list[bytes]) -> list[Any]:
    scheduler = make_scheduler(Playback("ok"), answer_format=form("json_tools", "think"))
    async with running(scheduler), client_of(scheduler) as client:
        headers = {"content-type": "application/json"}
        found = []
        for body in bodies:
            response = await client.post("/v1/chat/completions", content=body, headers=headers)
            found.append(response)
            await scheduler.wait_idle()
    return found


@pytest.mark.parametrize("penalty", [0, -0.0, 5e-324, 1e-300, 1e-46, 0.0099])
def test_a_repetition_penalty_of_next_to_nothing_is_a_400(penalty: float) -> None:
    """0 in float32, and NaN with a masked logit; 0.01 is the minimum."""

    @trio_test
    async def check(clock: trio.testing.MockClock) -> None:
        bodies = [chat(max_tokens=4, repetition_penalty=value) for value in (penalty, 0.01)]
        refused, least = await post([json.dumps(body).encode() for body in bodies])
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "repetition_penalty"
        assert least.status_code == 200

    check(clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("named", [None, "application/x-www-form-urlencoded", "text/plain", "a/b; charset=c"])
@trio_test
async def test_a_body_is_json_whatever_its_client_calls_it(
    named: str | None, autojump_clock: trio.testing.MockClock
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
    encoding: str, autojump_clock: trio.testing.MockClock
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
