"""All models of this server, their names, and which of them a request asks for.

A model's LoRA adapters are further models to clients: `base:name`, base being any name of the model, or
`name` alone where no model has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.errors import ModelNotFound
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.prompt.embedder import Embedder
from scheduler.prompt.vector_request import ENDPOINTS
from scheduler.request import ModelKind
from scheduler.service import Scheduler
from scheduler.shared.messages import Ready


@dataclass(frozen=True, slots=True)
class Served:
    """What a name in a request stands for: a model or an adapter, its scheduler, and the defaults of bodies
    that ask for it."""

    name: str
    scheduler: Scheduler
    defaults: Defaults
    adapter: str = ""
    """The name of the adapter that it means, or an empty string if it means none."""
    parent: str | None = None
    """The model's name, for an adapter."""
    embedder: Embedder | None = None
    """Set if the model is an embedder or a reranker; None if it writes tokens."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as clients see it. The first of its names is the one for requests that name none."""

    names: tuple[str, ...]
    created: int
    tool_calls: str = "native"
    """`AnswerFormat.tool_calls` of the model."""
    defaults: Mapping[str, Defaults] = field(default_factory=dict)
    """Defaults by name; a name that is not here has the neutral ones."""
    embedder: Embedder | None = None
    """Set if the model is an embedder or a reranker; None if it writes tokens."""

    @property
    def kind(self) -> ModelKind:
        return "chat" if self.embedder is None else self.embedder.kind

    @property
    def name(self) -> str:
        return self.names[0]

    def find(self, wanted: str | None, scheduler: Scheduler) -> Served | None:
        """Return what a request asks for by this name, or by none, or None if this model does not serve
        it."""
        name = self.name if wanted is None else wanted
        if name in self.names:
            return Served(name, scheduler, self.defaults.get(name, NEUTRAL), embedder=self.embedder)
        base, colon, adapter = name.rpartition(":")
        base = base if colon else self.name
        # An adapter whose files changed is lost with its engine.
        if base not in self.names or adapter not in scheduler.pool.adapters.names:
            return None
        return Served(name, scheduler, self.defaults.get(base, NEUTRAL), adapter, base, self.embedder)

    def listing(self, served: Served, ready: Ready | None = None) -> dict[str, Any]:
        """Return one entry for both OpenAI's and Anthropic's clients, which read different fields. `ready` is
        that of an engine that has loaded the model, or None."""
        context = served.scheduler.context_tokens
        # vLLM's field: the model of an adapter.
        parent = {} if served.parent is None else {"parent": served.parent}
        return {
            "id": served.name,
            "object": "model",
            "created": self.created,
            "owned_by": "penstock",
            # vLLM's name of the context, which clients read, OpenRouter's and Anthropic's.
            **dict.fromkeys(("max_model_len", "context_length", "max_input_tokens"), context),
            "tool_calls": self.tool_calls,
            "task": self.kind,
            "supported_endpoints": ENDPOINTS[self.kind],
            **({} if self.embedder is None else {"dimensions": self.embedder.dimensions}),
            "fallbacks": [] if ready is None else list(ready.fallbacks),
            "float32": None if ready is None else ready.float32,
            "kv_cache_dtype": None if ready is None else ready.kv_cache_dtype,
            "drafts": None if ready is None else ready.verifies,
            **parent,
            **served.defaults.described(),
            "type": "model",
            "display_name": served.name,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z"),
        }


class ServedModels:
    """All models, given by their names in the fleet. A name in a request means one model; a request that
    names none gets the first name of the first model."""

    def __init__(self, fleet: Fleet, models: Mapping[str, ServedModel]) -> None:
        self.fleet = fleet
        self._models = tuple((fleet[name], one) for name, one in models.items())

    @classmethod
    def of(cls, scheduler: Scheduler, model: ServedModel) -> ServedModels:
        """Return a server's only model, which is always loaded."""
        return cls(Fleet.of(model.name, scheduler), {model.name: model})

    def __iter__(self) -> Iterator[tuple[Model, ServedModel]]:
        return iter(self._models)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of all models, and one for each adapter, though requests may use further ones."""
        found: list[str] = []
        for model, served in self:
            adapters = model.scheduler.pool.adapters.names
            found += [*served.names, *(f"{served.name}:{adapter}" for adapter in adapters)]
        return found

    def check(self, wanted: str | None) -> Served:
        """Return what a request gets that names this model, or none. Raise ModelNotFound."""
        return self._find(wanted)[2]

    def model(self, wanted: str | None) -> Model:
        """Return the model of a name. Raise ModelNotFound."""
        return self._find(wanted)[0]

    def listing(self, name: str) -> dict[str, Any]:
        """Return the entry of one name for `/v1/models`. Raise ModelNotFound."""
        model, of_model, served = self._find(name)
        ready = model.scheduler.pool.ready
        return {
            **of_model.listing(served, ready),
            "state": model.state.value,
            "weights_bytes": None if ready is None else ready.weights_bytes,
            "memory_bytes": model.memory_bytes,
            **({} if model.reason is None else {"reason": model.reason}),
        }

    def listings(self) -> dict[str, Any]:
        names = self.names
        return {
            "object": "list",
            "data": [self.listing(name) for name in names],
            "has_more": False,
            "first_id": names[0],
            "last_id": names[-1],
        }

    def _find(self, wanted: str | None) -> tuple[Model, ServedModel, Served]:
        # Models' own names first: an adapter's may be equal to one.
        models = sorted(self._models, key=lambda one: wanted is not None and wanted not in one[1].names)
        for model, of_model in models:
            if (served := of_model.find(wanted, model.scheduler)) is not None:
                return model, of_model, served
        names = ", ".join(repr(name) for name in self.names)
        raise ModelNotFound(
            f"The model {wanted!r} does not exist here: this server has {names}", param="model"
        )
