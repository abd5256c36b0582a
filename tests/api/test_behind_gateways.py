"""What gateways add to requests. The gateways themselves are run in `tests/gateways/`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from trio.testing import trio_test

from tests.api.client import client_of
from tests.api.dialects.test_chat_tools import HERMES
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

MESSAGES = [{"role": "user", "content": "x"}]
FILLED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "/v1/responses",
        {"input": "x", "max_output_tokens": 3},
        {
            **{"store": True, "temperature": 1.0, "priority": 0},
            **{"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
        },
    ),
    ("/v1/chat/completions", {"messages": MESSAGES}, {"logprobs": False, "stream": False}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 3}, {"echo": False, "stream": False}),
]
"""Path, a body, and the fields that smg 1.13 adds to it."""


@pytest.mark.parametrize(("path", "body", "filled"), FILLED)
def test_what_a_gateway_fills_in_means_off(path: str, body: dict[str, Any], filled: dict[str, Any]) -> None:
    """The engine gets what it gets without these fields, and none of them is called unknown."""

    @trio_test
    async def check() -> None:
        launcher = Playback("one")
        scheduler = make_scheduler(launcher, answer_format=HERMES)
        async with running(scheduler), client_of(scheduler) as client:
            for fields in ({}, filled):
                response = await client.post(path, json={**body, "seed": 1, **fields})
                assert response.status_code == 200, response.text
                assert "x-penstock-ignored" not in response.headers
        first, second = launcher.submits
        assert msgspec.structs.replace(second, request_id=first.request_id) == first

    check()
