"""Requests generated from `/openapi.json` by schemathesis, sent to a real port: valid ones, and invalid ones.

The server always answers in time and as its own document says, and a refused request never reaches the
engine. The same requests are made every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.served_models import ServedModels
from tests.api.client import MODEL, app_of
from tests.api.dialects.test_chat_tools import HERMES
from tests.examples import examples
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.played_server import PlayedServer, playing
from tests.fakes.scheduling import make_scheduler

ANSWER_SECONDS = 20
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
DOCUMENT = app_of(ServedModels.of(make_scheduler(LoopbackLauncher()), MODEL)).openapi()
OPERATIONS = [
    (method.upper(), path)
    for path, operations in DOCUMENT["paths"].items()
    for method in operations
    if path != "/live"  # which has no end
]
WITH_A_BODY = [operation for operation in OPERATIONS if operation[0] == "POST" and "{" not in operation[1]]

bounded = settings(
    max_examples=examples(4),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def served() -> Iterator[PlayedServer]:
    with playing(lambda number, prompt: "ok", HERMES) as played:
        yield played


@pytest.fixture(scope="module")
def document(served: PlayedServer) -> Any:
    return schemathesis.openapi.from_url(served.url + "/openapi.json")


def send(case: Any, served: PlayedServer) -> int:
    """Return the status, after checking the answer against the document; only answered requests reached the
    engine."""
    before = served.submitted
    response = case.call(timeout=ANSWER_SECONDS)
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400:
        assert served.submitted == before
    return int(response.status_code)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(
    method: str, path: str, document: Any, served: PlayedServer
) -> None:
    """Many are still refused: a template's requirements, fields that exclude each other."""

    @bounded
    @given(case=document[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case: Any) -> None:
        if isinstance(case.body, dict):
            # The timeout is short but enough for a request that does not wait, and this server has one model.
            case.body.pop("timeout", None)
            case.body.pop("model", None)
        send(case, served)

    check()


@pytest.mark.parametrize(("method", "path"), WITH_A_BODY)
def test_what_the_document_does_not_allow_is_refused(
    method: str, path: str, document: Any, served: PlayedServer
) -> None:
    """As a client error, or accepted where the server is more permissive than its document."""

    @bounded
    @given(case=document[path][method].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def check(case: Any) -> None:
        assert send(case, served) < 500

    check()
