"""Every response has a request id, one short printable word whatever a client sends; so has the log line."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from api.http.request_id import ECHOED_IN, MAX_CHARACTERS, request_id_of
from api.served_models import ServedModels
from tests.api.client import MODEL, app_of, chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running

OURS = re.compile(r"req_[0-9a-f]{24}")
MINE = {"x-request-id": "agent-7/turn-3"}


@example(b"x" * MAX_CHARACTERS)
@example(b"x" * MAX_CHARACTERS + b"x")
@given(st.binary(max_size=200) | st.from_regex(rb"[A-Za-z0-9._~:/+=@-]{1,130}", fullmatch=True))
def test_a_clients_own_id_is_taken_as_it_is_or_ours_takes_its_place(value: bytes) -> None:
    """An accepted id is printable ASCII without spaces, quotes or line breaks, and short. The first of
    several counts."""
    taken = request_id_of([(b"x-request-id", value), (b"x-request-id", b"second")])
    usable = re.fullmatch(rb"[A-Za-z0-9._~:/+=@-]+", value) and len(value) <= MAX_CHARACTERS
    assert taken.encode() == value if usable else OURS.fullmatch(taken)


def ids_of(response: httpx.Response) -> set[str]:
    """Return the response's id; one word, or the headers differ."""
    return {response.headers[name.decode()] for name in ECHOED_IN}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", chat(), 200),
        ("/v1/messages", chat(stream=True), 200),
        ("/v1/messages", {}, 400),
        ("/nowhere", {}, 404),
    ],
)
def test_a_clients_id_comes_back_whatever_the_answer(path: str, body: dict[str, Any], status: int) -> None:
    """Also for a stream and for an error; without one each response gets a new id. The log line bears it
    beside the answer's own."""

    @trio_test
    async def check() -> None:
        scheduler = make_scheduler(LoopbackLauncher())
        with capture_logs() as logs:
            async with running(scheduler), client_of(scheduler) as client:
                response = await client.post(path, json=body, headers=MINE)
                assert (response.status_code, ids_of(response)) == (status, set(MINE.values()))
                first, second = [ids_of(await client.post(path, json=body)) for _ in range(2)]
                assert len(first) == len(second) == len(first | second) - 1 == 1
        named = [line["request_id"] for line in logs if line["event"] == "request"]
        assert set(named) == ({*MINE.values(), *first, *second} if status == 200 else set())

    check()


@trio_test
async def test_an_error_in_anthropics_dialect_names_it_also_in_the_middle_of_a_stream(
    autojump_clock: MockClock,
) -> None:
    """`request_id` beside the error, as their clients show it."""
    scheduler = make_scheduler(LoopbackLauncher(faulty(fail_sampler_token=ord("#"))))
    async with running(scheduler), client_of(scheduler) as client:
        body = (await client.post("/v1/messages", json=chat("#", stream=True), headers=MINE)).text
    last = body.strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.partition("data: ")[2])["request_id"] == "agent-7/turn-3"


@trio_test
async def test_a_fault_of_ours_is_an_error_of_the_dialect_with_its_name(autojump_clock: MockClock) -> None:
    """The exception's own text is not sent; the server's log has it with the same id."""
    scheduler = make_scheduler(LoopbackLauncher())
    app = app_of(ServedModels.of(scheduler, MODEL))

    @app.get("/v1/messages/broken")
    async def broken() -> None:
        raise ValueError("a secret")

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        response = await client.get("/v1/messages/broken", headers=MINE)
    assert (response.status_code, ids_of(response)) == (500, set(MINE.values()))
    assert response.json() == {
        "type": "error",
        "error": {"type": "api_error", "message": "Internal server error"},
        "request_id": "agent-7/turn-3",
    }
