"""The one model of this server, under the names that clients use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from api.model_defaults import NEUTRAL, Defaults
from scheduler.errors import ModelNotFound
from scheduler.prompt.embedder import Embedder
from scheduler.request import ModelKind


@dataclass(frozen=True, slots=True)
class ServedName:
    """One name of the model, and what applies where a body that asks for it says nothing."""

    name: str
    defaults: Defaults
    embedder: Embedder | None = None
    """None: the model writes tokens."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The names it answers to; the first is the one it gives where a request names none."""

    names: tuple[str, ...]
    created: int
    context_tokens: int
    tool_calls: str = "native"
    """`AnswerFormat.tool_calls` of the model."""
    defaults: Mapping[str, Defaults] = field(default_factory=dict)
    """By name; a name that is not here has the neutral ones."""
    embedder: Embedder | None = None
    """None: the model writes tokens."""

    @property
    def kind(self) -> ModelKind:
        return "chat" if self.embedder is None else self.embedder.kind

    @property
    def name(self) -> str:
        return self.names[0]

    def check(self, wanted: str | None) -> ServedName:
        """The name that a request asks for, or the first if it names none. Raises ModelNotFound."""
        if wanted is not None and wanted not in self.names:
            served = ", ".join(repr(name) for name in self.names)
            raise ModelNotFound(
                f"the model {wanted!r} is not served here; this server has {served}", param="model"
            )
        name = self.name if wanted is None else wanted
        return ServedName(name, self.defaults.get(name, NEUTRAL), self.embedder)

    def listing(self, name: str, fallbacks: Sequence[str] = ()) -> dict[str, Any]:
        """Return one list for OpenAI's and Anthropic's clients, which read different fields. `fallbacks`: of
        the engine's check at load (`Ready.fallbacks`)."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "penstock",
            # vLLM's field, which clients read.
            "max_model_len": self.context_tokens,
            "tool_calls": self.tool_calls,
            "task": self.kind,
            **({} if self.embedder is None else {"dimensions": self.embedder.dimensions}),
            "fallbacks": list(fallbacks),
            **self.defaults.get(name, NEUTRAL).described(),
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z"),
        }

    def listings(self, fallbacks: Sequence[str] = ()) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [self.listing(name, fallbacks) for name in self.names],
            "has_more": False,
            "first_id": self.names[0],
            "last_id": self.names[-1],
        }
