"""Malformed bodies: 400 or 422, never 5xx, and the engine gets none of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import trio_test

from api.dialects.openai.schema import ChatCompletionRequest
from tests.api.client import chat, client_of
from tests.examples import examples, some
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.answer.notations import form

DEEP: Any = "x"
for _ in range(200):
    DEEP = [DEEP]

JUNK: tuple[Any, ...] = (
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "\ud800",
    "a\r\nx-header: b",
    [],
    [None],
    [[]],
    {},
    {"": ""},
    {"type": "function"},
    {"\ud800": 1},
    DEEP,
)


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


@trio_test
async def test_junk_in_any_field_is_accepted_or_a_400_that_names_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Never a 5xx, never a hang; the error has OpenAI's shape."""
    fields = sorted({*ChatCompletionRequest.model_fields, "no_such_field"})
    sent = [
        (field, json.dumps({**chat(max_tokens=4), field: junk}).encode())
        for field in fields
        for junk in some(JUNK)
    ]
    for (field, body), response in zip(sent, await post([body for _, body in sent]), strict=True):
        if response.status_code == 200:
            continue
        error = response.json()["error"]
        assert response.status_code in (400, 404), (body, error)
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] is None or error["param"].split(".")[0] in (field, "stream_options"), body


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


WHOLE = json.dumps(
    {
        **chat(max_tokens=4, temperature=0.5),
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "user", "content": "é🦊"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": [1]}'}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ],
    },
    ensure_ascii=False,
).encode()


@trio_test
async def test_a_body_cut_anywhere_is_a_400(autojump_clock: trio.testing.MockClock) -> None:
    """Truncated JSON, also inside a character."""
    for response in await post([WHOLE[:end] for end in some(range(0, len(WHOLE), 7))]):
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_body_with_any_byte_changed_never_breaks_the_server(data: st.DataObject) -> None:
    """Requests that are still valid are answered."""
    positions = data.draw(st.lists(st.integers(0, len(WHOLE) - 1), min_size=1, max_size=4))
    changed = bytearray(WHOLE)
    for position in positions:
        changed[position] = data.draw(st.integers(0, 255))

    @trio_test
    async def check(clock: trio.testing.MockClock) -> None:
        (response,) = await post([bytes(changed)])
        assert response.status_code in (200, 400, 404, 422)

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
