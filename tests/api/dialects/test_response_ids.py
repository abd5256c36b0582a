"""A response's id names the server that made it, so that another server can tell which one has it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import trio_test

from api.dialects.responses.response_ids import ResponseIds
from api.options.options import load
from scheduler.errors import OptionError
from tests.api.client import client_of
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.transcripts import named_events, response_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

NAMES = st.from_regex(r"[A-Za-z0-9]{0,32}", fullmatch=True)
ELSEWHERE = f"resp_mac2_{'0' * 48}"


@settings(deadline=None, derandomize=True)
@given(NAMES, NAMES)
def test_an_id_says_whose_it_is_to_every_other_front(mine: str, other: str) -> None:
    """Not to its own, whose it was: there, it was deleted, evicted or lost in a restart."""
    hint = ResponseIds(mine).elsewhere(ResponseIds(other).new())
    if other in ("", mine):
        assert hint == ""
    else:
        assert f"the server {other!r}" in hint
        assert (f"this is {mine!r}" if mine else "this one has no name") in hint


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=200))
def test_any_text_may_be_asked_for(text: str) -> None:
    """What is no id of ours names no server."""
    found = ResponseIds("mac1").elsewhere(text)
    assert found == "" or re.fullmatch(r"resp_[A-Za-z0-9]{1,32}_[0-9a-f]{48}", text)


def test_without_a_name_ids_are_as_they_were() -> None:
    """OpenAI's form."""
    assert re.fullmatch(r"resp_[0-9a-f]{48}", ResponseIds().new())
    assert re.fullmatch(r"resp_mac1_[0-9a-f]{48}", ResponseIds("mac1").new())


@pytest.mark.parametrize("name", ["mac 1", "mac_1", "mac-1", "é", "x" * 33, ""])
def test_a_name_that_is_none_is_refused_at_the_start(name: str) -> None:
    """By the option's name: in an id, an underscore ends it."""
    with pytest.raises(OptionError, match="--front-name"):
        load({"front_name": name})


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_has_the_fronts_name_in_its_id(stream: bool) -> None:
    """Its items' ids are as short as ever."""

    @trio_test
    async def check() -> None:
        scheduler = make_scheduler(Playback("one"), answer_format=HERMES)
        async with running(scheduler), client_of(scheduler, front_name="mac1") as client:
            answer = await client.post("/v1/responses", json={"input": "x", "stream": stream})
            response = response_of(named_events(answer.text)) if stream else answer.json()
            again = await client.get(f"/v1/responses/{response['id']}")
        assert re.fullmatch(r"resp_mac1_[0-9a-f]{48}", response["id"])
        assert re.fullmatch(r"msg_[0-9a-f]{48}0000", response["output"][0]["id"])
        assert again.json() == response

    check()


@trio_test
async def test_an_answer_of_another_front_is_not_found_and_its_front_named(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """By the statuses and codes that a client knows, and no engine works for it."""
    scheduler = make_scheduler(LoopbackLauncher())
    continued: dict[str, Any] = {"input": "x", "previous_response_id": ELSEWHERE}
    async with running(scheduler), client_of(scheduler, front_name="mac1") as client:
        answers = [
            await client.get(f"/v1/responses/{ELSEWHERE}"),
            await client.delete(f"/v1/responses/{ELSEWHERE}"),
            await client.post(f"/v1/responses/{ELSEWHERE}/cancel"),
            await client.post("/v1/responses", json=continued),
        ]
        assert scheduler.operations.statistics().in_engine == 0
    assert [answer.status_code for answer in answers] == [404, 404, 404, 400]
    errors = [answer.json()["error"] for answer in answers]
    assert [error["code"] for error in errors] == [*["response_not_found"] * 3, "previous_response_not_found"]
    for error in errors:
        assert error["message"].endswith("not found: it is of the server 'mac2', this is 'mac1'.")
