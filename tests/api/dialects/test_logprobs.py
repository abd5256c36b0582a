"""Log-probabilities for the official client, in each of OpenAI's dialects, streamed and whole."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from trio.testing import MockClock, trio_test

from scheduler.answer.answer_format import PLAIN, AnswerFormat
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.dialects.test_official_dialects import gpt
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

# The client leaves its own generators to the garbage collector after a stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SAID = "<think>Hm.</think>\nné!"
ANSWER = "né!"
TOKENS = ["n", "�", "�", "!"]
"""A byte each: the second and the third are one character."""
BEGUN = len(b"<think>Hm.</think>\n")
ASK: Any = [{"role": "user", "content": "hello"}]
HALF = -math.log(2)


def rank(place: int) -> int:
    """Return the rank of the scripted engine's token at `place` among the likeliest."""
    return place % 4


def expected(place: int) -> float:
    return HALF * (rank(place) + 1)


@asynccontextmanager
async def playing(*texts: str, answer_format: AnswerFormat = HERMES) -> AsyncIterator[openai.AsyncOpenAI]:
    scheduler = make_scheduler(Playback(*texts), answer_format=answer_format)
    async with running(scheduler), gpt(scheduler) as client:
        yield client


def check_entries(entries: Any, top: int, *, is_there: bool = True) -> None:
    """Check that there is one entry for each token of the text, and no other, with the engine's values."""
    if is_there:
        assert [entry.token for entry in entries] == TOKENS
        assert bytes(byte for entry in entries for byte in entry.bytes).decode() == ANSWER
    for place, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(expected(BEGUN + place))
        assert [other.logprob for other in entry.top_logprobs] == pytest.approx(
            [HALF * (number + 1) for number in range(top)]
        )
        if rank(BEGUN + place) < top:
            assert entry.top_logprobs[rank(BEGUN + place)].token == entry.token


@trio_test
async def test_chat(autojump_clock: MockClock) -> None:
    """`content` has the text's tokens; reasoning has none."""
    for top in (0, 2, 20):
        ask: Any = {"model": "tiny", "messages": ASK, "logprobs": True, "top_logprobs": top}
        async with playing(SAID) as client:
            whole = await client.chat.completions.create(**ask)
            chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
            async with client.chat.completions.stream(**ask) as stream:
                final = await stream.get_final_completion()
        (choice,) = whole.choices
        assert choice.message.content == ANSWER
        check_entries(choice.logprobs.content, top)
        assert final.choices[0].logprobs == choice.logprobs, "the client's accumulator joins the lists"
        found = [chunk.choices[0].logprobs for chunk in chunks]
        check_entries([entry for one in found if one is not None for entry in one.content or ()], top)


@trio_test
async def test_each_choice_has_its_own(autojump_clock: MockClock) -> None:
    """And a request without logprobs gets none."""
    ask: Any = {"model": "tiny", "messages": ASK}
    async with playing("abc", "de", answer_format=PLAIN) as client:
        two: ChatCompletion = await client.chat.completions.create(**ask, logprobs=True, n=2)
        none: ChatCompletion = await client.chat.completions.create(**ask, logprobs=False)
    lists = [choice.logprobs.content or [] for choice in two.choices if choice.logprobs]
    assert ["".join([entry.token for entry in entries]) for entries in lists] == ["abc", "de"]
    assert none.choices[0].logprobs is None


@trio_test
async def test_completions(autojump_clock: MockClock) -> None:
    """The completions shape: parallel lists; partial characters by their bytes as keys; offsets into the
    text; the chosen token among the likeliest, even if that makes one more."""
    async with playing(ANSWER, answer_format=PLAIN) as client:
        for top in (0, 1, 5):
            whole = await client.completions.create(model="tiny", prompt="x", logprobs=top)
            stream = await client.completions.create(model="tiny", prompt="x", logprobs=top, stream=True)
            chunks: list[Completion] = [chunk async for chunk in stream]
            found = whole.choices[0].logprobs
            assert found is not None
            assert found.tokens == ["n", "bytes:\\xc3", "bytes:\\xa9", "!"]
            assert found.text_offset == [0, 1, 1, 2]
            assert found.token_logprobs == pytest.approx([expected(place) for place in range(4)])
            assert found.top_logprobs is not None
            for place, (token, likely) in enumerate(zip(found.tokens, found.top_logprobs, strict=True)):
                assert likely[token] == pytest.approx(expected(place))
                assert len(likely) == top + (rank(place) >= top)
            parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [entry for part in parts for entry in getattr(part, name)] == getattr(found, name)


@trio_test
async def test_responses(autojump_clock: MockClock) -> None:
    """On request, in the part, in the deltas and when the text is done."""
    asks: list[dict[str, Any]] = [
        {},
        {"include": ["message.output_text.logprobs"]},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
        {"top_logprobs": 3},
    ]
    for fields in asks:
        top = fields.get("top_logprobs", 0)
        async with playing(SAID) as client:
            whole: Any = await client.responses.create(model="tiny", input="x", **fields)
            stream: Any = await client.responses.create(model="tiny", input="x", stream=True, **fields)
            events = [event async for event in stream]
        for response in (whole, events[-1].response):
            (part,) = response.output[-1].content
            assert (part.text, response.top_logprobs) == (ANSWER, top)
            assert fields or part.logprobs == []
            check_entries(part.logprobs, top, is_there=bool(fields))
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        check_entries([entry for event in deltas for entry in event.logprobs], top, is_there=False)
        (done,) = [event for event in events if event.type == "response.output_text.done"]
        assert [entry.token for entry in done.logprobs] == (TOKENS if fields else [])
