"""Which fields a server honours is judged by each answer alone."""

from __future__ import annotations

from functools import partial

import httpx
import pytest

from loadtests.peers import ask_fields


def _event(text: str) -> str:
    return f'data: {{"choices": [{{"delta": {{"content": "{text}"}}}}]}}\n\n'


def test_an_answer_that_is_cut_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [_event("whole"), _event("whole") + _event("cut")[:-9], _event("next")]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(bodies.pop(0).encode()))

    client = partial(httpx.Client, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "Client", client)
    asker = ask_fields.Asker("http://peer", "tiny")
    assert [asker.plain.text, asker.say().text, asker.say().text] == ["whole", "whole", "next"]
