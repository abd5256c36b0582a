"""The conversation of `penstock chat`: its messages, and the body of the request for the next one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from api.cli.answer import Answer
from api.cli.errors import OperatorError
from api.close_match import close_match

MOST_TOKENS = 4096
"""Bound on an answer for which the user has set none. The client holds it itself: as `max_tokens` in the body
it would have to fit the context beside a prompt whose length only the server knows."""
_OF_THE_CHAT = frozenset(("model", "messages", "stream", "stream_options", "tools", "n"))
"""Fields that the conversation sets itself, or has no use for."""
_BOUNDS = frozenset(
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict")
)
NOT_RUN = "This tool was not run: the user's client runs no tools."
"""The result of each tool call, because many chat templates refuse a call without one."""


@dataclass(slots=True)
class Conversation:
    model: str
    system: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The messages in the form of OpenAI's API, without the system's, and without thinking: chat templates
    drop that of earlier turns."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the body that the user has set; the server checks their values."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools offered to the model, in the form of OpenAI's API."""

    def ask(self, question: str) -> dict[str, Any]:
        """Add a question, and return the body of the request for its answer."""
        self.messages.append({"role": "user", "content": question})
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {
            "model": self.model,
            "messages": [*system, *self.messages],
            **self.settings,
            **({"tools": list(self.tools)} if self.tools else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    @property
    def most_pieces(self) -> int | None:
        """Return the bound that this client holds, or None if the user's own is in the body."""
        return None if _BOUNDS & self.settings.keys() else MOST_TOKENS

    def set(self, name: str, value: str) -> None:
        """Set a field of the body; the value `default` removes it. Raise OperatorError for one that no API
        has. The server checks the value."""
        # Imported here: it takes a second, which most conversations do not need.
        from api.dialects.openai.schema import ChatCompletionRequest

        known = ChatCompletionRequest.model_fields.keys() - _OF_THE_CHAT
        if name not in known:
            near = close_match(name, known)
            hint = f": did you mean {near}?" if near else "; /help shows what there is"
            raise OperatorError(f"no request has a setting {name!r}{hint}")
        if value == "default":
            self.settings.pop(name, None)
        else:
            # Text that is no JSON is meant as text.
            self.settings[name] = value
            with suppress(ValueError, RecursionError):
                self.settings[name] = json.loads(value)

    def keep(self, answer: Answer) -> None:
        """Add what was received of the answer, or remove its question if that is nothing."""
        text = "".join(answer.text)
        # Arguments of a call that was cut are not valid JSON.
        calls = list(answer.calls.values()) if answer.is_whole else []
        if not (text or calls):
            self.messages.pop()
            return
        # Results refer to calls by id; some servers leave ids out.
        ids = [call.call_id or f"call_{number}" for number, call in enumerate(calls)]
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for one, call in zip(ids, calls, strict=True)
            ]
        results = [{"role": "tool", "tool_call_id": one, "content": NOT_RUN} for one in ids]
        self.messages += [message, *results]


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
