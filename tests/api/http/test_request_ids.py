"""Every response has a request id, and so does the log line."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from api.http.request_id import ECHOED_IN
from api.served_models import ServedModels
from tests.api.client import MODEL, app_of, chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running

MINE = {"x-request-id": "agent-7/turn-3"}


def ids_of(response: httpx.Response) -> set[str]:
    """Return the response's id; one word, or the headers differ."""
    return {response.headers[name.decode()] for name in ECHOED_IN}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", chat(), 200),
        ("/v1/chat/completions", chat(stream=True), 200),
        ("/v1/chat/completions", chat(n=0), 400),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}, 200),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2}, 200),
        ("/v1/messages", chat(stream=True), 200),
        ("/v1/messages", {}, 400),
        ("/nowhere", {}, 404),
    ],
)
def test_a_clients_id_comes_back_whatever_the_answer(path: str, body: dict[str, Any], status: int) -> None:
    """Also for a stream and for an error; without one each response gets a new id."""

    @trio_test
    async def check() -> None:
        scheduler = make_scheduler(LoopbackLauncher())
        async with running(scheduler), client_of(scheduler) as client:
            response = await client.post(path, json=body, headers=MINE)
            assert (response.status_code, ids_of(response)) == (status, set(MINE.values()))
            first, second = [ids_of(await client.post(path, json=body)) for _ in range(2)]
            assert len(first) == len(second) == len(first | second) - 1 == 1

    check()


@trio_test
async def test_the_log_line_bears_it(autojump_clock: MockClock) -> None:
    """The client's id, beside the answer's own."""
    scheduler = make_scheduler(LoopbackLauncher())
    with capture_logs() as logs:
        async with running(scheduler), client_of(scheduler) as client:
            answer = await client.post("/v1/chat/completions", json=chat(), headers=MINE)
    (line,) = [line for line in logs if line["event"] == "request"]
    assert (line["id"], line["request_id"]) == (answer.json()["id"], "agent-7/turn-3")


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
