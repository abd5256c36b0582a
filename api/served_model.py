"""One model of this server, under the names that clients use.

Its LoRA adapters are further models to clients: `base:name`, base being any name of the model, or `name`
alone where no model has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from api.model_defaults import NEUTRAL, Defaults
from scheduler.prompt.embedder import Embedder
from scheduler.request import ModelKind


@dataclass(frozen=True, slots=True)
class ServedName:
    """One name of the model, and what applies where a body that asks for it says nothing."""

    name: str
    defaults: Defaults
    adapter: str = ""
    """The name of the adapter that it means; empty: none."""
    parent: str | None = None
    """With an adapter, the model's name."""
    embedder: Embedder | None = None
    """None: the model writes tokens."""


def _no_adapters() -> Sequence[str]:
    return ()


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
    adapters: Callable[[], Sequence[str]] = _no_adapters
    """Their names now: operators load and unload them."""
    embedder: Embedder | None = None
    """None: the model writes tokens."""

    @property
    def kind(self) -> ModelKind:
        return "chat" if self.embedder is None else self.embedder.kind

    @property
    def name(self) -> str:
        return self.names[0]

    def find(self, wanted: str | None) -> ServedName | None:
        """Return what a request asks for by this name, or by none; None: not this model."""
        name = self.name if wanted is None else wanted
        if name in self.names:
            return ServedName(name, self.defaults.get(name, NEUTRAL), embedder=self.embedder)
        base, colon, adapter = name.rpartition(":")
        base = base if colon else self.name
        if base not in self.names or adapter not in self.adapters():
            return None
        return ServedName(name, self.defaults.get(base, NEUTRAL), adapter, base)

    @property
    def all_names(self) -> list[str]:
        """Its own, and one for each adapter, of all by which requests may ask for it."""
        return [*self.names, *(f"{self.name}:{adapter}" for adapter in self.adapters())]

    def listing(self, served: ServedName, fallbacks: Sequence[str] = ()) -> dict[str, Any]:
        """Return one list for OpenAI's and Anthropic's clients, which read different fields. `fallbacks`: of
        the engine's check at load (`Ready.fallbacks`)."""
        # vLLM's field: the model of an adapter.
        parent = {} if served.parent is None else {"parent": served.parent}
        return {
            "id": served.name,
            "object": "model",
            "created": self.created,
            "owned_by": "penstock",
            # vLLM's field, which clients read.
            "max_model_len": self.context_tokens,
            "tool_calls": self.tool_calls,
            "task": self.kind,
            **({} if self.embedder is None else {"dimensions": self.embedder.dimensions}),
            "fallbacks": list(fallbacks),
            **parent,
            **served.defaults.described(),
            "type": "model",
            "display_name": served.name,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z"),
        }
