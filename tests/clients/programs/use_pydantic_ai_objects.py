"""Pydantic AI's structured output: by a required tool call (its default), and by a schema that constrains the
answer."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import AsyncAnthropic
from exchange import ASK, object_told, server_url
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Time(BaseModel):
    zone: str
    hour: int


async def use(way: str, model: Any) -> None:
    for how, output in {"default": Time, "schema": NativeOutput(Time)}.items():
        agent: Agent[None, Time] = Agent(model, output_type=output)
        object_told(f"{way}, {how}", (await agent.run(ASK)).output.model_dump())
        async with agent.run_stream(ASK) as streamed:
            object_told(f"{way}, {how}, streamed", (await streamed.get_output()).model_dump())


async def main() -> None:
    openai = OpenAIProvider(base_url=server_url() + "/v1", api_key="unused")
    await use("openai", OpenAIChatModel("tiny", provider=openai))
    await use("responses", OpenAIResponsesModel("tiny", provider=openai))
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=server_url(), api_key="unused"))
    # It assumes schema support for models of certain names only.
    able = ModelProfile(supports_json_schema_output=True)
    await use("anthropic", AnthropicModel("tiny", provider=anthropic, profile=able))


asyncio.run(main())
