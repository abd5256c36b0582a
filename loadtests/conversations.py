"""Chats that have grown long, of words from a seed: questions and answers, or calls of a tool and results."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx

from loadtests.prompts import WORDS

MESSAGE_WORDS = 200
"""Words of a message of the past."""
_TOOL: dict[str, Any] = {
    "name": "edit",
    "description": "Change a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
    },
}


class Conversation:
    """A system prompt, a past, and turns."""

    def __init__(
        self, chance: random.Random, system: str, words: int, new_words: int, calls: bool = False
    ) -> None:
        """`words`: how many the past has, without the system prompt; `new_words`: how many each further turn
        adds. `calls`: the past is calls of a tool and their results, as an agent's is."""
        self._chance = chance
        self._new_words = max(1, new_words // 2)
        self._calls = calls
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
        self._say("user", 1)
        for _ in range(words // (2 * MESSAGE_WORDS)):
            self._step(MESSAGE_WORDS)

    def _say(self, role: str, words: int) -> None:
        self.messages.append({"role": role, "content": self._text(words)})

    def _text(self, words: int) -> str:
        return text_of(self._chance, words)

    def _step(self, words: int) -> None:
        """Append an answer and what follows it, each of `words` words."""
        if not self._calls:
            self._say("assistant", words)
            self._say("user", words)
            return
        number = f"call{len(self.messages)}"
        arguments = json.dumps({"path": f"/{number}", "text": self._text(words)})
        function = {"name": _TOOL["name"], "arguments": arguments}
        call = {"type": "function", "id": number, "function": function}
        self.messages.append({"role": "assistant", "content": "I edit it.", "tool_calls": [call]})
        self.messages.append({"role": "tool", "tool_call_id": number, "content": self._text(words)})

    def grow(self) -> None:
        self._step(self._new_words)

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return a request's body with the messages of now, which a later turn does not change."""
        tools = {"tools": [{"type": "function", "function": _TOOL}]} if self._calls else {}
        return {"messages": list(self.messages), **tools, **fields}


def text_of(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


async def words_per_token_of(http: httpx.AsyncClient, url: str) -> float:
    """Return the words per token of the tokenizer of the model behind `url`."""
    text = text_of(random.Random(0), 1000)
    answer = await http.post(f"{url}/tokenize", json={"prompt": text})
    return 1000 / float(answer.json()["count"])
