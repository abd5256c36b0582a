"""OpenAI's Agents SDK: what it keeps are the items of responses, which its model of chat
completions sends, too."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from session import HERE, edit_file, has_enough, play, read_file

SEALED = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
TOOLS: Any = [function_tool(read_file), function_tool(edit_file)]


def agent(model: Any, url: str) -> Agent[None]:
    client = AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    return Agent(
        name="session", model=model("tiny", openai_client=client), tools=TOOLS, model_settings=SEALED
    )


class Conversation:
    def __init__(self, urls: tuple[str, str], way: str) -> None:
        models = [OpenAIResponsesModel, OpenAIChatCompletionsModel]
        ordered = models if way == "responses" else models[::-1]
        self._agents = [agent(model, url) for model, url in zip(ordered, urls, strict=True)]
        self._items: list[Any] = []

    async def whole(self, question: str) -> str:
        result = await Runner.run(self._agents[HERE], question)
        self._items = result.to_input_list()
        return str(result.final_output)

    async def ask(self, question: str, server: int) -> str:
        result = self._streamed(question, server)
        async for _ in result.stream_events():
            pass
        self._items = result.to_input_list()
        return str(result.final_output)

    async def interrupted(self, question: str) -> str:
        story, had = self._streamed(question, HERE), ""
        async for event in story.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                had += event.data.delta
            if has_enough(had):
                story.cancel()
                break
        self._items.append({"role": "assistant", "content": had})
        return had

    def _streamed(self, question: str, server: int) -> Any:
        self._items.append({"role": "user", "content": question})
        return Runner.run_streamed(self._agents[server], self._items)


set_tracing_disabled(True)  # traces would go to api.openai.com
asyncio.run(play(Conversation, version("openai-agents")))
