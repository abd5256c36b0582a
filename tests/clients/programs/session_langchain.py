"""LangChain: the messages of one protocol's session are sent by another one's model."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from session import HERE, beginning, edit_file, play, read_file

TOOLS = {each.name: each for each in (tool(read_file), tool(edit_file))}


def chat(url: str, **more: Any) -> Any:
    return ChatOpenAI(model="tiny", base_url=url + "/v1", api_key="unused", max_retries=0, **more)


def responses(url: str) -> Any:
    return chat(url, use_responses_api=True)


def messages(url: str) -> Any:
    return ChatAnthropic(model="tiny", base_url=url, api_key="unused", max_tokens=100_000, max_retries=0)


WAYS = {"chat": (chat, messages), "responses": (responses, chat), "messages": (messages, responses)}
"""Protocol -> the models of both servers."""


class Conversation:
    def __init__(self, urls: tuple[str, str], way: str) -> None:
        models = [model(url) for model, url in zip(WAYS[way], urls, strict=True)]
        self._models = [model.bind_tools([*TOOLS.values()]) for model in models]
        self._messages: list[Any] = []

    async def whole(self, question: str) -> str:
        self._messages.append(HumanMessage(question))
        self._messages.append(self._models[HERE].invoke(self._messages))
        return str(self._messages[-1].text)

    async def ask(self, question: str, server: int) -> str:
        self._messages.append(HumanMessage(question))
        while True:
            first, *rest = self._models[server].stream(self._messages)
            message = sum(rest, start=first)
            self._messages.append(message)
            if not message.tool_calls:
                return str(message.text)
            results = [(call["id"], TOOLS[call["name"]].invoke(call["args"])) for call in message.tool_calls]
            self._messages += [ToolMessage(text, tool_call_id=one) for one, text in results]

    async def interrupted(self, question: str) -> str:
        self._messages.append(HumanMessage(question))
        stream = self._models[HERE].stream(self._messages)
        had = beginning(chunk.text for chunk in stream)
        stream.close()
        self._messages.append(AIMessage(had))
        return had


asyncio.run(play(Conversation, version("langchain-core")))
