"""Pydantic AI: the messages of one protocol's session are sent by another one's model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any

import pydantic_ai
from anthropic import AsyncAnthropic
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from session import (
    EDIT,
    ELSEWHERE,
    ENOUGH,
    ON,
    PLAIN,
    READ,
    STORY,
    edit_file,
    read_file,
    sessions,
    told,
)


def chat(url: str) -> Any:
    return OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=url + "/v1", api_key="unused"))


def responses(url: str) -> Any:
    return OpenAIResponsesModel("tiny", provider=OpenAIProvider(base_url=url + "/v1", api_key="unused"))


def messages(url: str) -> Any:
    client = AsyncAnthropic(base_url=url, api_key="unused", max_retries=0)
    return AnthropicModel(
        "tiny", provider=AnthropicProvider(anthropic_client=client), settings={"max_tokens": 100_000}
    )


async def streamed(context: Any, events: AsyncIterable[Any]) -> None:
    async for _ in events:
        pass


async def ask(agent: Agent[None, str], history: list[ModelMessage], question: str) -> str:
    # Not `run_stream`, which takes what a model says before it calls a tool for its answer.
    run = await agent.run(question, message_history=history, event_stream_handler=streamed)
    history[:] = run.all_messages()
    return run.output


WAYS = {"chat": (chat, messages), "responses": (responses, chat), "messages": (messages, responses)}
"""Protocol -> the models of both servers."""


async def use(here: Any, elsewhere: Any) -> None:
    agent: Agent[None, str] = Agent(here, tools=[read_file, edit_file])
    first = await agent.run(PLAIN)
    history = first.all_messages()
    answers = [first.output, *[await ask(agent, history, question) for question in (READ, EDIT)]]
    had = ""
    async with agent.run_stream(STORY, message_history=history) as story:
        async for had in story.stream_text(debounce_by=None):
            if ENOUGH in had:
                break
    history += [ModelRequest.user_text_prompt(STORY), ModelResponse(parts=[TextPart(had)])]
    answers.append(await ask(agent, history, ON))
    other: Agent[None, str] = Agent(elsewhere, tools=[read_file, edit_file])
    answers.append(await ask(other, history, ELSEWHERE))
    told(version=pydantic_ai.__version__, answers=answers, had=had)


async def main() -> None:
    for here_url, elsewhere_url, way in sessions():
        here, elsewhere = WAYS[way]
        await use(here(here_url), elsewhere(elsewhere_url))


# In one loop: providers share an HTTP client.
asyncio.run(main())
