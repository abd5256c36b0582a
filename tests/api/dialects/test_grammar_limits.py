"""An answer that meets a limit of its grammar ends with an error of the client's, whatever the dialect: 400,
or the dialect's error event where the stream has begun."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat("#"),
    "/v1/completions": {"prompt": "#"},
    "/v1/responses": {"input": "#"},
    "/v1/messages": chat("#", max_tokens=9),
}
SAYS = "tools: it met a limit on purpose"


@pytest.mark.parametrize("path", BODIES)
@trio_test
async def test_a_limit_is_the_clients_error_that_names_it(
    path: str, autojump_clock: trio.testing.MockClock
) -> None:
    scheduler = make_scheduler(LoopbackLauncher(faulty(grammar_limit_token=ord("#"))))
    async with running(scheduler), client_of(scheduler) as client:
        whole = await client.post(path, json=BODIES[path])
        streamed = await client.post(path, json={**BODIES[path], "stream": True})
    assert whole.status_code == 400
    error = whole.json()["error"]
    assert (error["type"], error["message"]) == ("invalid_request_error", SAYS)
    if path != "/v1/messages":
        assert (error["code"], error["param"]) == ("grammar_limit", "tools")
    datas = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    last = json.loads([data for data in datas if data != "[DONE]"][-1])
    if path == "/v1/responses":
        assert last["type"] == "response.failed"
        assert last["response"]["error"] == {"code": "invalid_prompt", "message": SAYS}
    else:
        assert (last["error"]["type"], last["error"]["message"]) == ("invalid_request_error", SAYS)
