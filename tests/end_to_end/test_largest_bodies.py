"""The largest body of each field of each route, flat and deep: the event loop goes on.

The server runs on the scripted engine, which is a process of its own and takes no time. What is measured is
the loop's own CPU time (`loop_watch.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from statistics import median
from typing import Any

import pytest

from api.bodies.garbage import OUT_OF_REACH
from api.served_models import ServedModels
from tests.api.client import MODEL, app_of
from tests.end_to_end.largest_bodies import Largest, largest_bodies
from tests.end_to_end.loop_watch import Watched, watching
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler

_MOST_SECONDS = 0.05
"""Bound on any step; the largest body alone is read in 0.02 s."""
_USUAL_SECONDS = 0.005
_ANSWER_SECONDS = 240.0
_STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_SAMPLE = (
    "/v1/responses tools[]<FunctionTool>.parameters deep",
    "/v1/responses tools[]<FunctionTool>.description text",
    "/v1/responses input[]<Call>.arguments text of lists",
    "/v1/chat/completions messages[].tool_calls[].function.arguments text of objects",
    "/v1/responses text.format.schema lists",
    "/tokenize prompt text",
    "/detokenize tokens items 0",
)
_SMALL = "/v1/chat/completions"


_DOCUMENT = app_of(ServedModels.of(make_scheduler(LoopbackLauncher()), MODEL)).openapi()
CASES = {case.name: case for case in largest_bodies(_DOCUMENT)}
LARGE = {case.name: case for case in largest_bodies(_DOCUMENT, most_bytes=2 << 20)}
"""Tokenizing a text takes four seconds a MiB. Ids of two, made on the loop, would hold it for 0.08 s."""


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with watching("--engine", "scripted") as watched:
        yield watched


def send(watched: Watched, path: str, body: dict[str, Any]) -> tuple[int, float]:
    """Return the status, and the loop's longest step."""
    text = json.dumps(body, separators=(",", ":")).encode()
    connection = HTTPConnection("127.0.0.1", watched.port, timeout=_ANSWER_SECONDS)
    watched.look()
    try:
        connection.request("POST", path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    return answer.status, watched.look().step


def test_the_description_was_made_before_anybody_asks(watched: Watched) -> None:
    """It takes 0.8 s. No other test here asks for it."""
    watched.look()
    connection = HTTPConnection("127.0.0.1", watched.port, timeout=_ANSWER_SECONDS)
    connection.request("GET", "/openapi.json")
    assert connection.getresponse().status == 200
    connection.close()
    assert watched.look().step <= _MOST_SECONDS


def test_no_full_collection_starts_by_itself(watched: Watched) -> None:
    """With a thousand requests that wait it takes 0.3 s."""
    assert watched.look().apart == OUT_OF_REACH


def check(watched: Watched, case: Largest) -> None:
    """Whole and streamed, accepted or refused. Once in three runs: a machine may be late."""
    body = case.make()
    for fields in ({}, {"stream": True}) if case.path in _STREAMED else ({},):
        steps = []
        for _ in range(3):
            status, step = send(watched, case.path, {**body, **fields})
            assert status < 500
            steps.append(step)
            if step <= _MOST_SECONDS:
                break
        assert min(steps) <= _MOST_SECONDS, (fields, steps)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", _SAMPLE)
def test_a_large_value_of_a_field_holds_the_loop_for_no_time(name: str, watched: Watched) -> None:
    check(watched, LARGE[name])


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_nor_does_the_largest(name: str, watched: Watched) -> None:
    check(watched, CASES[name])


def test_a_usual_request_holds_it_for_less(watched: Watched) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": True}
    found = [send(watched, _SMALL, body) for _ in range(9)]
    assert {status for status, _ in found} == {200}
    assert median(step for _, step in found) <= _USUAL_SECONDS
