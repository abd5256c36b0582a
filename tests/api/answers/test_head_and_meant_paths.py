"""`HEAD` wherever `GET` is, and what a 404 or a 405 says was probably meant."""

from __future__ import annotations

import pytest
import trio.testing
from trio.testing import trio_test

from api.answers.meant_paths import PATHS, meant
from api.served_models import ServedModels
from tests.api.client import MODEL, app_of, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

GETS = [
    "/health",
    "/ready",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/scheduler",
    "/metrics",
    "/",
    "/live",
    "/docs",
]


@trio_test
async def test_head_is_gets_head(autojump_clock: trio.testing.MockClock) -> None:
    """Also of a stream that never ends, of an error, and of what needs another method."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        for path in [*GETS, "/v1/models/none", "/nothing", "/v1/chat/completions"]:
            head = await client.head(path)
            assert head.content == b"", path
            if path == "/live":
                assert head.status_code == 200
                continue
            whole = await client.get(path)
            assert head.status_code == whole.status_code, path
            assert head.headers["content-type"] == whole.headers["content-type"]


def test_every_path_that_may_be_meant_is_there() -> None:
    paths = app_of(ServedModels.of(make_scheduler(LoopbackLauncher()), MODEL)).openapi()["paths"]
    for path, method in PATHS.items():
        assert path == "/docs" or method.lower() in paths[path]


MEANT = {
    "/chat/completions": "POST /v1/chat/completions",
    "/v1/v1/chat/completions": "POST /v1/chat/completions",
    "//v1/chat/completions": "POST /v1/chat/completions",
    "/api/v1/chat/completions": "POST /v1/chat/completions",
    "/v1/openai/v1/responses": "POST /v1/responses",
    "/api/chat": "POST /v1/chat/completions",
    "/api/generate": "POST /v1/completions",
    "/completion": "POST /v1/completions",
    "/api/tags": "GET /v1/models",
    "/models": "GET /v1/models",
    "/messages": "POST /v1/messages",
    "/v1/v1/messages/count_tokens": "POST /v1/messages/count_tokens",
    "/v1/chat/completion": "POST /v1/chat/completions",
    "/v1/chatcompletions": "POST /v1/chat/completions",
    "/v1/embedding": "POST /v1/embeddings",
    "/healthz": "GET /health",
    "/v1/files": "`penstock batch IN.jsonl OUT.jsonl`, which answers a file of requests",
    "/v1/messages/batches": "`penstock batch IN.jsonl OUT.jsonl`, which answers a file of requests",
    "/wp-login.php": None,
    "/": None,
    "/" + "a/" * 5000: None,
}


@pytest.mark.parametrize("path", MEANT, ids=lambda path: path[:40])
def test_a_wrong_path_names_the_right_one(path: str) -> None:
    assert meant(path) == MEANT[path]


@trio_test
async def test_the_error_says_it_in_the_dialect(autojump_clock: trio.testing.MockClock) -> None:
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        missing = await client.post("/chat/completions", json={})
        method = await client.get("/v1/chat/completions")
        nested = await client.post("/v1/messages/v1/messages", json={})
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "Not Found: did you mean POST /v1/chat/completions?"
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    assert "this path takes POST" in method.json()["error"]["message"]
    assert nested.json()["error"]["message"] == "Not Found: did you mean POST /v1/messages?"
    assert nested.json()["type"] == "error"
