"""The one model of this server, by the names that clients give it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The names it answers to; the first is the one it gives."""

    names: tuple[str, ...]
    created: int
    context_tokens: int
    tool_calls: str = "native"
    """`AnswerFormat.tool_calls` of the model."""

    @property
    def name(self) -> str:
        return self.names[0]

    def check(self, wanted: str | None) -> None:
        """Raises ModelNotFound. A request that names no model means this one."""
        if wanted is not None and wanted not in self.names:
            served = ", ".join(repr(name) for name in self.names)
            raise ModelNotFound(f"the model {wanted!r} is not served here; there is {served}", param="model")

    def listing(self, name: str) -> dict[str, Any]:
        """For OpenAI's clients and Anthropic's in one: they look at different fields."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "penstock",
            # vLLM's field, which clients read.
            "max_model_len": self.context_tokens,
            "tool_calls": self.tool_calls,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z"),
        }

    def listings(self) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [self.listing(name) for name in self.names],
            "has_more": False,
            "first_id": self.names[0],
            "last_id": self.names[-1],
        }
