"""anthropic-python's messages. It has no history of its own: the program keeps the messages."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
from session import HERE, SCHEMAS, beginning, called, play

TOOLS: Any = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]


class Messages:
    def __init__(self, urls: tuple[str, str], way: str) -> None:
        self._clients = [anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0) for url in urls]
        self._messages: list[Any] = []
        self._asked: Any = {"model": "tiny", "messages": self._messages, "tools": TOOLS}

    def _say(self, role: str, content: Any) -> None:
        self._messages.append({"role": role, "content": content})

    async def whole(self, question: str) -> str:
        self._say("user", question)
        return self._said(self._clients[HERE].messages.create(max_tokens=1000, **self._asked))

    async def ask(self, question: str, server: int) -> str:
        self._say("user", question)
        while True:
            with self._clients[server].messages.stream(max_tokens=100_000, **self._asked) as stream:
                message = stream.get_final_message()
            text = self._said(message)
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return text
            results = [(call.id, called(call.name, call.input)) for call in calls]
            self._say(
                "user",
                [{"type": "tool_result", "tool_use_id": one, "content": text} for one, text in results],
            )

    async def interrupted(self, question: str) -> str:
        self._say("user", question)
        with self._clients[HERE].messages.stream(max_tokens=100_000, **self._asked) as stream:
            had = beginning(stream.text_stream)
        self._say("assistant", had)
        return had

    def _said(self, message: Any) -> str:
        self._say("assistant", message.content)
        return "".join(block.text for block in message.content if block.type == "text")


asyncio.run(play(Messages, anthropic.__version__))
