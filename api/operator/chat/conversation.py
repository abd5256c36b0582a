"""The conversation of `penstock chat`: what was said, and the body of the request that asks for more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from api.operator.answer import Reply

NOT_RUN = "This tool was not run: the user's client runs no tools."
"""The result of each call: a call without one is refused by many templates."""


@dataclass(frozen=True, slots=True)
class Turn:
    question: str
    reply: Reply | None = None
    """None: there was no answer."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of the body that the user may set."""

    kind: type[float] | type[int] | type[str]
    low: float = 0.0
    high: float = float("inf")

    def read(self, text: str) -> float | int | str:
        """Raise ValueError with what it must be."""
        if self.kind is str:
            return text
        try:
            value = int(text) if self.kind is int else float(text)
        except ValueError:
            raise ValueError(f"must be {'an integer' if self.kind is int else 'a number'}") from None
        if not self.low <= value <= self.high:
            upper = "" if self.high == float("inf") else f" and at most {self.high:g}"
            raise ValueError(f"must be at least {self.low:g}{upper}")
        return value


SETTINGS: Mapping[str, Setting] = {
    "temperature": Setting(float, 0, 2),
    "top_p": Setting(float, 0, 1),
    "top_k": Setting(int, -1),
    "min_p": Setting(float, 0, 1),
    "max_tokens": Setting(int, 1),
    "seed": Setting(int, 0, 2**63 - 1),
    "presence_penalty": Setting(float, -2, 2),
    "frequency_penalty": Setting(float, -2, 2),
    "repetition_penalty": Setting(float, 0, 10),
    "reasoning_effort": Setting(str),
}


@dataclass(frozen=True, slots=True)
class Conversation:
    model: str
    system: str = ""
    turns: tuple[Turn, ...] = ()
    settings: Mapping[str, float | int | str] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    """Offered to the model, as OpenAI's API has them."""

    def asked(self, question: str) -> Conversation:
        """Return it with one more turn, in place of a last one that got no answer."""
        turns = self.turns[:-1] if self.is_unanswered else self.turns
        return replace(self, turns=(*turns, Turn(question)))

    def answered(self, reply: Reply | None) -> Conversation:
        *before, last = self.turns
        return replace(self, turns=(*before, Turn(last.question, reply)))

    @property
    def is_unanswered(self) -> bool:
        return bool(self.turns) and self.turns[-1].reply is None

    @property
    def last_reply(self) -> Reply | None:
        return next((turn.reply for turn in reversed(self.turns) if turn.reply is not None), None)

    def body(self) -> dict[str, Any]:
        """Return the request for an answer to the last turn."""
        return {
            "model": self.model,
            "messages": self.messages(),
            **self.settings,
            **({"tools": list(self.tools)} if self.tools else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def messages(self) -> list[dict[str, Any]]:
        """As OpenAI's API has them. Thinking is left out: chat templates drop that of earlier turns."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(message for turn in self.turns for message in _messages(turn))]


def read_tools(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of a JSON list, whose entries are as in OpenAI's API. Raise ValueError."""
    try:
        tools = json.loads(text)
        if not isinstance(tools, list) or not all(
            isinstance(tool["function"]["name"], str) for tool in tools
        ):
            raise TypeError
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            'is no JSON list of tools: [{"type": "function", "function": {"name": ..., "parameters": ...}}]'
        ) from error
    return tuple(tools)


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": turn.question}
    if (reply := turn.reply) is None:
        return
    if not reply.calls:
        yield {"role": "assistant", "content": reply.text}
        return
    # Ids tell results apart; some servers leave them out.
    ids = [call.call_id or f"call_{number}" for number, call in enumerate(reply.calls)]
    yield {
        "role": "assistant",
        "content": reply.text or None,
        "tool_calls": [
            {"id": one, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for one, call in zip(ids, reply.calls, strict=True)
        ],
    }
    for one in ids:
        yield {"role": "tool", "tool_call_id": one, "content": NOT_RUN}
