"""What a client records of a stream, in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import trio
from trio.testing import MockClock, trio_test

from loadtests.chaos.answers import ask
from loadtests.chaos.questions import Question

QUESTION = Question(0, {"messages": [], "stream": True}, greedy=True)


class _Slow(httpx.AsyncByteStream):
    def __init__(self, *events: tuple[float, str | None]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for seconds, word in self._events:
            await trio.sleep(seconds)
            chunk = {"choices": [{"delta": {"content": word}}]}
            yield b"data: " + (b"[DONE]" if word is None else json.dumps(chunk).encode()) + b"\n\n"


@trio_test
async def test_a_pause_is_noted_after_the_first_words(autojump_clock: MockClock) -> None:
    """An answer without words may wait in the queue, which is no pause of a stream; short ones are steps."""
    stream = _Slow((0.0, ""), (9.0, "a"), (0.2, "b"), (1.5, "c"), (0.3, None))
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=stream))
    async with httpx.AsyncClient(transport=transport) as http:
        began = trio.current_time()
        answer = await ask(http, "http://test", QUESTION)
    assert (answer.text, answer.whole) == ("abc", True)
    assert [pause.deltas for pause in answer.pauses] == [2, 3]
    assert [pause.began - began for pause in answer.pauses] == pytest.approx([9.2, 10.7])
    assert [pause.seconds for pause in answer.pauses] == pytest.approx([1.5, 0.3])
    assert answer.longest_pause_seconds == 9.0
