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

SEALED = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
TOOLS: Any = [function_tool(read_file), function_tool(edit_file)]


def agent(model: Any, url: str) -> Agent[None]:
    client = AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    return Agent(
        name="session", model=model("tiny", openai_client=client), tools=TOOLS, model_settings=SEALED
    )


async def ask(agent: Agent[None], items: list[Any], question: str) -> str:
    result = Runner.run_streamed(agent, [*items, {"role": "user", "content": question}])
    async for _ in result.stream_events():
        pass
    items[:] = result.to_input_list()
    return str(result.final_output)


async def use(here_url: str, elsewhere_url: str, way: str) -> None:
    models = [OpenAIResponsesModel, OpenAIChatCompletionsModel]
    here, elsewhere = models if way == "responses" else models[::-1]
    first = agent(here, here_url)
    greeted = await Runner.run(first, PLAIN)
    items: list[Any] = greeted.to_input_list()
    answers = [greeted.final_output, *[await ask(first, items, question) for question in (READ, EDIT)]]
    items.append({"role": "user", "content": STORY})
    story, had = Runner.run_streamed(first, items), ""
    async for event in story.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            had += event.data.delta
        if ENOUGH in had:
            story.cancel()
            break
    items.append({"role": "assistant", "content": had})
    answers.append(await ask(first, items, ON))
    answers.append(await ask(agent(elsewhere, elsewhere_url), items, ELSEWHERE))
    told(version=version("openai-agents"), answers=answers, had=had)


async def main() -> None:
    set_tracing_disabled(True)  # traces would go to api.openai.com
    for session in sessions():
        await use(*session)


asyncio.run(main())
