"""The official async client against the application, with a model whose text is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
import trio
import trio.testing
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from trio.testing import trio_test

from api.served_models import ServedModel, ServedModels
from scheduler.service import Scheduler
from tests.api.client import MODEL, app_of
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.dialects.test_embeddings import MODEL as EMBEDDER_MODEL
from tests.api.dialects.test_embeddings import embedding_scheduler, text_tokens, vector
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

# The client leaves its own generators to the garbage collector after a stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    },
}
USER: ChatCompletionMessageParam = {"role": "user", "content": "What time is it?"}


@asynccontextmanager
async def official(scheduler: Scheduler, model: ServedModel = MODEL) -> AsyncIterator[openai.AsyncOpenAI]:
    app = app_of(ServedModels.of(scheduler, model))
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http,
        openai.AsyncOpenAI(
            base_url="http://penstock/v1", api_key="unused", http_client=http, max_retries=0
        ) as client,
    ):
        yield client


@trio_test
async def test_a_call_that_cannot_be_read_is_answered_and_sent_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As text where nothing of it is known, else as a call whose arguments are what the model wrote: the
    client's own objects take it, and the next request has it."""
    broken = '<tool_call>{"name": "get_time", "arguments": {"zone": UTC}}</tool_call>'
    launcher = Playback("<tool_call>time?</tool_call>", broken, broken, "It is noon.")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), official(scheduler) as client:
        text = await client.chat.completions.create(model="tiny", messages=[USER], tools=[TOOL])
        assert text.choices[0].message.content == "<tool_call>time?</tool_call>"
        assert text.choices[0].finish_reason == "stop"
        assert text.choices[0].model_extra == {"penstock": {"malformed_tool_call": True}}
        whole = await client.chat.completions.create(model="tiny", messages=[USER], tools=[TOOL])
        async with client.chat.completions.stream(model="tiny", messages=[USER], tools=[TOOL]) as stream:
            streamed = await stream.get_final_completion()
        for answer in (whole, streamed):
            (choice,) = answer.choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.tool_calls is not None
            (call,) = choice.message.tool_calls
            assert call.type == "function"
            assert (call.function.name, call.function.arguments) == ("get_time", '{"zone": UTC}}')
        said: Any = whole.choices[0].message.model_dump()
        complaint: ChatCompletionMessageParam = {
            "role": "tool",
            "tool_call_id": call.id,
            "content": "the arguments are not JSON",
        }
        last = await client.chat.completions.create(
            model="tiny", messages=[USER, said, complaint], tools=[TOOL]
        )
    assert last.choices[0].message.content == "It is noon."


@trio_test
async def test_embeddings_are_lists_of_numbers(autojump_clock: trio.testing.MockClock) -> None:
    """The client asks for base64 by itself, and decodes it; asked for numbers it gets the same."""
    async with (
        running(scheduler := embedding_scheduler()),
        official(scheduler, EMBEDDER_MODEL) as client,
    ):
        packed = await client.embeddings.create(model="tiny", input=["one", "two"])
        plain = await client.embeddings.create(
            model="tiny", input=["one", "two"], encoding_format="float", dimensions=16
        )
        with pytest.raises(openai.BadRequestError, match="4 or 8 or 16"):
            await client.embeddings.create(model="tiny", input="one", dimensions=3)
    expected = [pytest.approx(vector(text_tokens(text))) for text in ("one", "two")]
    assert [entry.embedding for entry in packed.data] == expected
    assert [entry.embedding for entry in plain.data] == expected
    assert packed.usage.total_tokens == 8
