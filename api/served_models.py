"""All models of this server, and which of them a request asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api.model_defaults import Defaults
from api.served_model import ServedModel, ServedName
from api.version import own_version
from scheduler.errors import ModelNotFound
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.prompt.embedder import Embedder
from scheduler.service import Scheduler


@dataclass(frozen=True, slots=True)
class Served:
    """What a request gets that asks for a name: whose it is, and what applies to it."""

    of_name: ServedName
    context_tokens: int
    scheduler: Scheduler

    @property
    def name(self) -> str:
        return self.of_name.name

    @property
    def adapter(self) -> str:
        """The LoRA adapter that the name means; empty: none."""
        return self.of_name.adapter

    @property
    def embedder(self) -> Embedder | None:
        """None: the model writes tokens."""
        return self.of_name.embedder

    @property
    def defaults(self) -> Defaults:
        return self.of_name.defaults


class ServedModels:
    """`models`: by the fleet's names. Names of requests are unique over all of them; the first name of the
    first model is the one of requests that name none."""

    def __init__(self, fleet: Fleet, models: Mapping[str, ServedModel]) -> None:
        self.fleet = fleet
        self._models = tuple((fleet[name], _with_adapters(fleet[name], one)) for name, one in models.items())

    @classmethod
    def of(cls, scheduler: Scheduler, model: ServedModel) -> ServedModels:
        """Return a server's only model, which is always loaded."""
        return cls(Fleet.of(model.name, scheduler), {model.name: model})

    def __iter__(self) -> Iterator[tuple[Model, ServedModel]]:
        return iter(self._models)

    @property
    def names(self) -> Sequence[str]:
        """Of all models, and one for each adapter."""
        return [name for _, model in self for name in model.all_names]

    def check(self, wanted: str | None) -> Served:
        """Return what a request gets that names this model, or none. Raise ModelNotFound."""
        model, served, of_name = self._find(wanted)
        return Served(of_name, served.context_tokens, model.scheduler)

    def model(self, wanted: str | None) -> Model:
        """Return the model of a name. Raise ModelNotFound."""
        return self._find(wanted)[0]

    def listing(self, name: str) -> dict[str, Any]:
        """Raise ModelNotFound."""
        model, served, of_name = self._find(name)
        ready = model.scheduler.pool.ready
        return {
            **served.listing(of_name, () if ready is None else ready.fallbacks),
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
            "server": own_version().listing(),
        }

    def _find(self, wanted: str | None) -> tuple[Model, ServedModel, ServedName]:
        # Models' own names first: an adapter's may be equal to one.
        models = sorted(self._models, key=lambda one: wanted is not None and wanted not in one[1].names)
        for model, served in models:
            if (of_name := served.find(wanted)) is not None:
                return model, served, of_name
        names = ", ".join(repr(name) for name in self.names)
        raise ModelNotFound(
            f"the model {wanted!r} is not served here; this server has {names}", param="model"
        )


def _with_adapters(model: Model, served: ServedModel) -> ServedModel:
    return replace(served, adapters=lambda: model.scheduler.pool.adapters.names)
