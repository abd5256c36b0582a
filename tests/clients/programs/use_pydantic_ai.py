"""Pydantic AI's agents on OpenAI's two protocols and on Anthropic's. They run the loop themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import AsyncAnthropic
from exchange import ASK, HELLO, server_url, told
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


async def use(way: str, model: Any) -> None:
    called: list[Any] = []
    plain: Agent[None, str] = Agent(model)
    agent: Agent[None, str] = Agent(model)

    @agent.tool_plain
    def get_time(zone: str) -> str:
        """The time in a zone."""
        called.append({"zone": zone})
        return "12:00"

    chat = (await plain.run(HELLO)).output
    async with plain.run_stream(HELLO) as streamed:
        stream = "".join([piece async for piece in streamed.stream_text(delta=True)])
    answer = (await agent.run(ASK)).output
    (only,) = called
    told(way, chat=chat, stream=stream, called=only, answer=answer)


async def main() -> None:
    openai = OpenAIProvider(base_url=server_url() + "/v1", api_key="unused")
    await use("openai", OpenAIChatModel("tiny", provider=openai))
    await use("responses", OpenAIResponsesModel("tiny", provider=openai))
    # Its own way to make this client supports only versions of anthropic before the second.
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=server_url(), api_key="unused"))
    await use("anthropic", AnthropicModel("tiny", provider=anthropic))


asyncio.run(main())
