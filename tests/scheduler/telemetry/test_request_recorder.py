"""The one log line of a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from scheduler.errors import InvalidRequest
from scheduler.request import Origin
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running

FIELDS = {
    *("event", "log_level", "id", "request_id", "outcome", "prompt_tokens", "output_tokens", "resumed"),
    *("tenant", "session", "priority", "model", "engine", "cached_tokens"),
    *("wait_seconds", "queue_seconds", "ttft_seconds", "total_seconds"),
}


def request_lines(logs: Any) -> list[dict[str, Any]]:
    return [dict(line) for line in logs if line["event"] == "request"]


@trio_test
async def test_each_request_leaves_one_line_with_its_counts_and_waits(autojump_clock: MockClock) -> None:
    """Ids, outcome, tokens and seconds; no word of the prompt or the answer is in any line of the service."""
    scheduler = make_scheduler(LoopbackLauncher())
    with capture_logs() as logs:
        async with running(scheduler):
            question = "x" * 16 + " my bank account is 12345"
            request = ask(question, max_tokens=4, tenant="acme", session="s1", priority=2)
            text, _ = await answer(scheduler, request)
    [line] = request_lines(logs)
    assert set(line) == FIELDS
    assert (line["id"], line["outcome"]) == (request.public_id, "length")
    assert (line["prompt_tokens"], line["output_tokens"]) == (len(f"<user>{question}\n<assistant>"), 4)
    assert (line["tenant"], line["session"], line["priority"]) == ("acme", "s1", 2)
    assert line["engine"] == "0"
    assert line["wait_seconds"] == 0
    # A step of 10 ms prefills and gives the first token, each of the next three another.
    assert line["queue_seconds"] == 0
    assert line["ttft_seconds"] == 0.01
    assert line["total_seconds"] == 0.04
    everything = repr(list(logs))
    assert text
    assert not [word for word in ("12345", *text.split()) if word in everything]


@trio_test
async def test_a_request_that_was_refused_leaves_a_line_as_well(autojump_clock: MockClock) -> None:
    """With the reason, and the id that its client got."""
    scheduler = make_scheduler(LoopbackLauncher())
    with capture_logs() as logs:
        async with running(scheduler):
            with pytest.raises(InvalidRequest):
                await answer(scheduler, replace(ask(max_tokens=10**9), origin=Origin("mine")))
    [line] = request_lines(logs)
    assert (line["request_id"], line["outcome"]) == ("mine", "invalid")
    assert line["refused"] == "context_length_exceeded"
