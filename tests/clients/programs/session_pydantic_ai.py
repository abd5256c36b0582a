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
from session import HERE, edit_file, has_enough, play, read_file


def chat(url: str) -> Any:
    return OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=url + "/v1", api_key="unused"))


def responses(url: str) -> Any:
    return OpenAIResponsesModel("tiny", provider=OpenAIProvider(base_url=url + "/v1", api_key="unused"))


def messages(url: str) -> Any:
    client = AsyncAnthropic(base_url=url, api_key="unused", max_retries=0)
    return AnthropicModel(
        "tiny", provider=AnthropicProvider(anthropic_client=client), settings={"max_tokens": 100_000}
    )


WAYS = {"chat": (chat, messages), "responses": (responses, chat), "messages": (messages, responses)}
"""Protocol -> the models of both servers."""


async def streamed(context: Any, events: AsyncIterable[Any]) -> None:
    async for _ in events:
        pass


class Conversation:
    def __init__(self, urls: tuple[str, str], way: str) -> None:
        models = [model(url) for model, url in zip(WAYS[way], urls, strict=True)]
        self._agents: list[Agent[None, str]] = [
            Agent(model, tools=[read_file, edit_file]) for model in models
        ]
        self._history: list[ModelMessage] = []

    async def whole(self, question: str) -> str:
        run = await self._agents[HERE].run(question)
        self._history = run.all_messages()
        return run.output

    async def ask(self, question: str, server: int) -> str:
        # Not `run_stream`, which takes what a model says before it calls a tool for its answer.
        run = await self._agents[server].run(
            question, message_history=self._history, event_stream_handler=streamed
        )
        self._history = run.all_messages()
        return run.output

    async def interrupted(self, question: str) -> str:
        had = ""
        async with self._agents[HERE].run_stream(question, message_history=self._history) as story:
            async for had in story.stream_text(debounce_by=None):
                if has_enough(had):
                    break
        self._history += [ModelRequest.user_text_prompt(question), ModelResponse(parts=[TextPart(had)])]
        return had


# In one loop: providers share an HTTP client.
asyncio.run(play(Conversation, pydantic_ai.__version__))
