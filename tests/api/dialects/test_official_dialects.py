"""The official clients against the application, with a model whose text is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import trio
from trio.testing import MockClock, trio_test

from api.access.api_keys import ApiKeys, load_keys
from api.dialects.responses.running import RunningResponses
from api.served_models import ServedModel, ServedModels
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import MODEL, app_of
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.dialects.test_embeddings import MODEL as EMBEDDER_MODEL
from tests.api.dialects.test_embeddings import embedding_scheduler, text_tokens, vector
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

# The clients leave their own generators to the garbage collector after a stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OPEN = ApiKeys()
ASK: Any = {"role": "user", "content": "What time is it?"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"zone": {"type": "string"}}}
TOOL: Any = {"name": "get_time", "input_schema": SCHEMA}
FUNCTION: Any = {"type": "function", "name": "get_time", "parameters": SCHEMA, "strict": None}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "get_time", "parameters": SCHEMA}}
BROKEN = '<tool_call>{"name": "get_time", "arguments": {"zone": "UTC", "at": noon}}</tool_call>'
WRITTEN = '{"zone": "UTC", "at": noon}}'
"""Its arguments, as the model wrote them."""


@asynccontextmanager
async def http_of(
    scheduler: Scheduler, keys: ApiKeys, model: ServedModel = MODEL
) -> AsyncIterator[httpx2.AsyncClient]:
    responses = RunningResponses()
    app = app_of(ServedModels.of(scheduler, model), keys=keys, running=responses)
    async with (
        trio.open_nursery() as nursery,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http,
    ):
        await nursery.start(responses.run)
        yield http
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def claude(
    scheduler: Scheduler, keys: ApiKeys = OPEN, key: str = "unused", retries: int = 0
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        http_of(scheduler, keys) as http,
        anthropic.AsyncAnthropic(
            base_url="http://penstock", api_key=key, http_client=http, max_retries=retries
        ) as client,
    ):
        yield client


@asynccontextmanager
async def gpt(scheduler: Scheduler, model: ServedModel = MODEL) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        http_of(scheduler, OPEN, model) as http,
        openai.AsyncOpenAI(
            base_url="http://penstock/v1", api_key="unused", http_client=http, max_retries=0
        ) as client,
    ):
        yield client


@trio_test
async def test_an_unreadable_call_goes_back_in_a_chat(autojump_clock: MockClock) -> None:
    """As text where nothing of it is known, else as a call whose arguments are what the model wrote: the
    client's own objects take it, and the next request has it."""
    unknown = "<tool_call>time?</tool_call>"
    scheduler = make_scheduler(Playback(unknown, BROKEN, BROKEN, "It is noon."), answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        ask: Any = {"model": "tiny", "messages": [ASK], "tools": [CHAT_TOOL]}
        text = await client.chat.completions.create(**ask)
        assert (text.choices[0].message.content, text.choices[0].finish_reason) == (unknown, "stop")
        assert text.choices[0].model_extra == {"penstock": {"malformed_tool_call": True}}
        whole = await client.chat.completions.create(**ask)
        async with client.chat.completions.stream(**ask) as stream:
            streamed = await stream.get_final_completion()
        answers: list[Any] = [whole, streamed]
        for answer in answers:
            (choice,) = answer.choices
            assert choice.finish_reason == "tool_calls"
            (call,) = choice.message.tool_calls
            assert (call.type, call.function.name, call.function.arguments) == (
                "function",
                "get_time",
                WRITTEN,
            )
        said, complaint = whole.choices[0].message.model_dump(), "the arguments are not JSON"
        ask["messages"] += [said, {"role": "tool", "tool_call_id": call.id, "content": complaint}]
        last = await client.chat.completions.create(**ask)
    assert last.choices[0].message.content == "It is noon."


@trio_test
async def test_an_unreadable_call_goes_back_in_messages(autojump_clock: MockClock) -> None:
    """Neither the client's object nor its accumulation raises."""
    scheduler = make_scheduler(Playback(BROKEN, BROKEN, "Sorry."), answer_format=HERMES)
    async with running(scheduler), claude(scheduler) as client:
        ask: Any = {"model": "tiny", "max_tokens": 500, "messages": [ASK], "tools": [TOOL]}
        whole = await client.messages.create(**ask)
        async with client.messages.stream(**ask) as stream:
            final = await stream.get_final_message()
        assert [block.type for block in whole.content] == ["text"]
        assert [block.type for block in final.content] == ["tool_use", "text"]
        answers: list[Any] = [whole, final]
        for message in answers:
            assert (message.stop_reason, message.content[-1].text) == ("end_turn", BROKEN)
        ask["messages"] += [{"role": "assistant", "content": final.content}, ASK]
        assert (await client.messages.create(**ask)).stop_reason == "end_turn"


@trio_test
async def test_an_unreadable_call_is_in_a_response(autojump_clock: MockClock) -> None:
    """The arguments are what the model wrote, streamed and whole."""
    scheduler = make_scheduler(Playback(BROKEN), answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        ask: Any = {"model": "tiny", "input": "What time?", "tools": [FUNCTION]}
        whole = await client.responses.create(**ask)
        async with client.responses.stream(**ask) as stream:
            final = await stream.get_final_response()
    answers: list[Any] = [whole, final]
    for response in answers:
        (item,) = response.output
        assert (item.type, item.arguments) == ("function_call", WRITTEN)
        assert response.model_extra["penstock"] == {"malformed_tool_call": True}


@trio_test
async def test_claude_raises_its_own_errors(autojump_clock: MockClock) -> None:
    """By status, and for an error within a stream."""
    keys = load_keys("sk-right", None)
    scheduler = make_scheduler(LoopbackLauncher(faulty(die_at_step=3)))
    long: Any = {"role": "user", "content": "x" * 41_000}
    too_long = r"prompt is too long: \d+ tokens > 40960 maximum"
    async with running(scheduler):
        async with claude(scheduler, keys, "sk-wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model="tiny", max_tokens=5, messages=[ASK])
        async with claude(scheduler, keys, "sk-right") as client:
            with pytest.raises(anthropic.NotFoundError, match="model: 'claude-9' does not exist here"):
                await client.messages.create(model="claude-9", max_tokens=5, messages=[ASK])
            with pytest.raises(anthropic.BadRequestError, match=too_long):
                await client.messages.create(model="tiny", max_tokens=9, messages=[long])
            async with client.messages.stream(model="tiny", max_tokens=500, messages=[ASK]) as stream:
                with pytest.raises(anthropic.APIStatusError) as caught:
                    await stream.until_done()
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "api_error"


@trio_test
async def test_claude_tries_an_overloaded_server_again(autojump_clock: MockClock) -> None:
    """After the time in Retry-After; a client that does not gets the status that Anthropic has for it."""
    plan = ScriptedPlan(step_seconds=1.0)
    scheduler = make_scheduler(LoopbackLauncher(), plan, max_slots=1, max_queue=1, lookahead=0)
    ends: list[Any] = []
    ask: Any = {"model": "tiny", "max_tokens": 3, "messages": [ASK]}
    async with running(scheduler), claude(scheduler, retries=40) as client, trio.open_nursery() as nursery:

        async def create(**options: Any) -> None:
            try:
                ends.append((await client.with_options(**options).messages.create(**ask)).stop_reason)
            except anthropic.APIStatusError as error:
                ends.append(error.status_code)

        for _ in range(4):
            nursery.start_soon(create)
        await trio.sleep(0.5)
        await create(max_retries=0)
    assert ends == [529, *["max_tokens"] * 4]


@trio_test
async def test_embeddings_are_lists_of_numbers(autojump_clock: MockClock) -> None:
    """The client asks for base64 by itself, and decodes it; asked for numbers it gets the same."""
    async with running(scheduler := embedding_scheduler()), gpt(scheduler, EMBEDDER_MODEL) as client:
        ask: Any = {"model": "tiny", "input": ["one", "two"]}
        packed = await client.embeddings.create(**ask)
        plain = await client.embeddings.create(**ask, encoding_format="float", dimensions=16)
    expected = [pytest.approx(vector(text_tokens(text))) for text in ("one", "two")]
    for found in (packed, plain):
        assert [entry.embedding for entry in found.data] == expected
    assert packed.usage.total_tokens == 8
