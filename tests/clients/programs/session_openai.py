"""openai-python. Of chat completions the program keeps the messages; of responses each turn names the one
before it, and the last server gets the items, with the identifiers that the first one gave them."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from session import HERE, SCHEMAS, Session, beginning, called, play

FUNCTIONS: Any = [{"name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
TOOLS: Any = [{"type": "function", "function": function} for function in FUNCTIONS]
FLAT_TOOLS: Any = [{"type": "function", "strict": False, **function} for function in FUNCTIONS]


class _Asking:
    def __init__(self, urls: tuple[str, str]) -> None:
        self._clients = [openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) for url in urls]
        self._said: list[Any] = []

    def _say(self, role: str, text: str) -> None:
        self._said.append({"role": role, "content": text})


class Chat(_Asking):
    def _create(self, **more: Any) -> Any:
        chats = self._clients[HERE].chat.completions
        return chats.create(model="tiny", messages=self._said, tools=TOOLS, **more)

    async def whole(self, question: str) -> str:
        self._say("user", question)
        message = self._create().choices[0].message
        self._said.append(message)
        return str(message.content)

    async def ask(self, question: str, server: int) -> str:
        self._say("user", question)
        chats = self._clients[server].chat.completions
        while True:
            with chats.stream(model="tiny", messages=self._said, tools=TOOLS) as stream:
                message = stream.get_final_completion().choices[0].message
            self._said.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                result = called(call.function.name, call.function.arguments)
                self._said.append({"role": "tool", "tool_call_id": call.id, "content": result})

    async def interrupted(self, question: str) -> str:
        self._say("user", question)
        with self._create(stream=True) as stream:
            had = beginning(chunk.choices[0].delta.content or "" for chunk in stream)
        self._say("assistant", had)
        return had


class Responses(_Asking):
    _newest: str | None = None
    """The stored response that the next turn names; after the interruption none."""

    async def whole(self, question: str) -> str:
        self._say("user", question)
        first = self._clients[HERE].responses.create(model="tiny", input=question, tools=FLAT_TOOLS)
        self._said += [item.model_dump() for item in first.output]
        self._newest = first.id
        return first.output_text

    async def ask(self, question: str, server: int) -> str:
        responses = self._clients[server].responses
        sent: list[Any] = [{"role": "user", "content": question}]
        while True:
            self._said += sent
            stored: Any = {"previous_response_id": self._newest} if self._newest else {}
            said = sent if stored else self._said
            with responses.stream(model="tiny", input=said, tools=FLAT_TOOLS, **stored) as stream:
                response = stream.get_final_response()
            self._newest = response.id if stored else None
            self._said += [item.model_dump(exclude_none=True) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text
            results = [(call.call_id, called(call.name, call.arguments)) for call in calls]
            sent = [{"type": "function_call_output", "call_id": one, "output": text} for one, text in results]

    async def interrupted(self, question: str) -> str:
        self._say("user", question)
        asked: Any = {"input": question, "previous_response_id": self._newest}
        with self._clients[HERE].responses.stream(model="tiny", tools=FLAT_TOOLS, **asked) as stream:
            had = beginning(
                event.delta if event.type == "response.output_text.delta" else "" for event in stream
            )
        self._say("assistant", had)
        self._newest = None
        return had


def session_of(urls: tuple[str, str], way: str) -> Session:
    return Chat(urls) if way == "chat" else Responses(urls)


asyncio.run(play(session_of, openai.__version__))
