"""The official clients on the other dialects, against the application, with a model whose text is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.access.api_keys import ApiKeys, load_keys
from api.dialects.responses.running import RunningResponses
from api.served_models import ServedModels
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import MODEL, app_of
from tests.api.dialects.test_chat_tools import HERMES, SAID
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


@asynccontextmanager
async def http_of(scheduler: Scheduler, keys: ApiKeys) -> AsyncIterator[httpx2.AsyncClient]:
    responses = RunningResponses()
    app = app_of(ServedModels.of(scheduler, MODEL), keys=keys, running=responses)
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
async def gpt(
    scheduler: Scheduler, keys: ApiKeys = OPEN, key: str = "unused"
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        http_of(scheduler, keys) as http,
        openai.AsyncOpenAI(
            base_url="http://penstock/v1", api_key=key, http_client=http, max_retries=0
        ) as client,
    ):
        yield client


@trio_test
async def test_claude_streams_what_it_creates(autojump_clock: trio.testing.MockClock) -> None:
    """The client's accumulation of the events equals the whole message."""
    scheduler = make_scheduler(Playback(SAID), answer_format=HERMES)
    async with running(scheduler), claude(scheduler) as client:
        whole = await client.messages.create(model="tiny", max_tokens=500, messages=[ASK], tools=[TOOL])
        async with client.messages.stream(
            model="tiny", max_tokens=500, messages=[ASK], tools=[TOOL]
        ) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="tiny", messages=[ASK], tools=[TOOL])
        listed = [model.id async for model in client.models.list()]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert {"thinking", "text", "input_json"} <= set(kinds)
    for one, other in zip(final.content, whole.content, strict=True):
        assert one.model_dump(exclude={"id", "parsed_output"}) == other.model_dump(
            exclude={"id", "parsed_output"}
        )
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    assert counted.input_tokens == whole.usage.input_tokens
    assert listed == ["tiny", "owner/alias"]


BROKEN = '<tool_call>{"name": "get_time", "arguments": {"zone": "UTC", "at": noon}}</tool_call>'


@trio_test
async def test_claude_reads_an_answer_whose_call_cannot_be_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Neither the client's object nor its accumulation raises; what it got goes back in the next request."""
    scheduler = make_scheduler(Playback(BROKEN, BROKEN, "Sorry."), answer_format=HERMES)
    async with running(scheduler), claude(scheduler) as client:
        whole = await client.messages.create(model="tiny", max_tokens=500, messages=[ASK], tools=[TOOL])
        async with client.messages.stream(
            model="tiny", max_tokens=500, messages=[ASK], tools=[TOOL]
        ) as stream:
            final = await stream.get_final_message()
        assert [block.type for block in whole.content] == ["text"]
        assert [block.type for block in final.content] == ["tool_use", "text"]
        for message in (whole, final):
            assert message.stop_reason == "end_turn"
            assert message.content[-1].type == "text"
            assert message.content[-1].text == BROKEN
        said: Any = {"role": "assistant", "content": final.content}
        last = await client.messages.create(
            model="tiny", max_tokens=500, messages=[ASK, said, ASK], tools=[TOOL]
        )
    assert last.stop_reason == "end_turn"


@trio_test
async def test_gpt_reads_a_response_whose_call_cannot_be_read(autojump_clock: trio.testing.MockClock) -> None:
    """The arguments are what the model wrote, streamed and whole."""
    scheduler = make_scheduler(Playback(BROKEN), answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        whole = await client.responses.create(model="tiny", input="What time?", tools=[FUNCTION])
        async with client.responses.stream(model="tiny", input="What time?", tools=[FUNCTION]) as stream:
            final = await stream.get_final_response()
    for response in (whole, final):
        (item,) = response.output
        assert item.type == "function_call"
        assert item.arguments == '{"zone": "UTC", "at": noon}}'
        assert response.model_extra is not None
        assert response.model_extra["penstock"] == {"malformed_tool_call": True}


@trio_test
async def test_claude_raises_its_own_errors(autojump_clock: trio.testing.MockClock) -> None:
    """By status, and for an error within a stream."""
    keys = load_keys("sk-right", None)
    scheduler = make_scheduler(LoopbackLauncher(faulty(die_at_step=3)))
    async with running(scheduler):
        async with claude(scheduler, keys, "sk-wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model="tiny", max_tokens=5, messages=[ASK])
        async with claude(scheduler, keys, "sk-right") as client:
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(model="claude-9", max_tokens=5, messages=[ASK])
            long: Any = {"role": "user", "content": "x" * 41_000}
            with pytest.raises(
                anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 40960 maximum"
            ):
                await client.messages.create(model="tiny", max_tokens=9, messages=[long])
            async with client.messages.stream(model="tiny", max_tokens=500, messages=[ASK]) as stream:
                with pytest.raises(anthropic.APIStatusError) as caught:
                    await stream.until_done()
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "api_error"


@trio_test
async def test_claude_tries_again_where_the_server_is_overloaded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After the time in Retry-After."""
    plan = ScriptedPlan(step_seconds=1.0)
    scheduler = make_scheduler(LoopbackLauncher(), plan, max_slots=1, max_queue=1, lookahead=0)
    texts: list[str | None] = []
    async with running(scheduler), claude(scheduler, retries=40) as client:

        async def ask() -> None:
            message = await client.messages.create(model="tiny", max_tokens=3, messages=[ASK])
            texts.append(message.stop_reason)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask)
    assert texts == ["max_tokens"] * 4


@trio_test
async def test_responses_with_a_tool_and_its_result(autojump_clock: trio.testing.MockClock) -> None:
    """By the stored response, and by sending the output back: the prompt is the same."""
    launcher = Playback(SAID, "It is noon.", "It is noon.")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        first = await client.responses.create(model="tiny", input="What time is it?", tools=[FUNCTION])
        call = first.output[-1]
        assert call.type == "function_call"
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}
        second = await client.responses.create(
            model="tiny", input=[result], previous_response_id=first.id, tools=[FUNCTION]
        )
        items: Any = [ASK, *[item.model_dump(exclude_none=True) for item in first.output], result]
        third = await client.responses.create(model="tiny", input=items, store=False, tools=[FUNCTION])
        assert second.output_text == third.output_text == "It is noon."
        assert (await client.responses.retrieve(second.id)).output_text == "It is noon."
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)
    assert launcher.submits[1].prompt == launcher.submits[2].prompt
