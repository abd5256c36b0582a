"""The one model of this server, under the names that clients use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The accepted names; responses use the first."""

    names: tuple[str, ...]
    created: int
    context_tokens: int

    @property
    def name(self) -> str:
        return self.names[0]

    def check(self, wanted: str | None) -> None:
        """Raise ModelNotFound for another name. A request without a model name means this one."""
        if wanted is not None and wanted not in self.names:
            served = ", ".join(repr(name) for name in self.names)
            raise ModelNotFound(f"the model {wanted!r} is not served here; there is {served}", param="model")

    def listing(self, name: str) -> dict[str, Any]:
        """Return one list for OpenAI's and Anthropic's clients, which read different fields."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "penstock",
            # vLLM's field, which clients read.
            "max_model_len": self.context_tokens,
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
