"""All models of this server, and which of them a request asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.model_defaults import Defaults
from api.served_model import ServedModel, ServedName
from scheduler.errors import ModelNotFound
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
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
    def defaults(self) -> Defaults:
        return self.of_name.defaults


class ServedModels:
    """`models`: by the fleet's names. Names of requests are unique over all of them; the first name of the
    first model is the one of requests that name none."""

    def __init__(self, fleet: Fleet, models: Mapping[str, ServedModel]) -> None:
        self.fleet = fleet
        self._models = tuple((fleet[name], model) for name, model in models.items())

    @classmethod
    def of(cls, scheduler: Scheduler, model: ServedModel) -> ServedModels:
        """Return a server's only model, which is always loaded."""
        return cls(Fleet.of(model.name, scheduler), {model.name: model})

    def __iter__(self) -> Iterator[tuple[Model, ServedModel]]:
        return iter(self._models)

    @property
    def names(self) -> Sequence[str]:
        return [name for _, model in self for name in model.names]

    def check(self, wanted: str | None) -> Served:
        """Return what a request gets that names this model, or none. Raise ModelNotFound."""
        model, served = self._find(wanted)
        return Served(served.check(wanted), served.context_tokens, model.scheduler)

    def model(self, wanted: str | None) -> Model:
        """Return the model of a name. Raise ModelNotFound."""
        return self._find(wanted)[0]

    def listing(self, name: str) -> dict[str, Any]:
        """Raise ModelNotFound."""
        return self._listing(*self._find(name), name)

    def listings(self) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [self._listing(model, served, name) for model, served in self for name in served.names],
            "has_more": False,
            "first_id": self.names[0],
            "last_id": self.names[-1],
        }

    @staticmethod
    def _listing(model: Model, served: ServedModel, name: str) -> dict[str, Any]:
        ready = model.scheduler.pool.ready
        return {
            **served.listing(name, () if ready is None else ready.fallbacks),
            "state": model.state.value,
            "weights_bytes": None if ready is None else ready.weights_bytes,
            **({} if model.reason is None else {"reason": model.reason}),
        }

    def _find(self, wanted: str | None) -> tuple[Model, ServedModel]:
        for model, served in self:
            if wanted is None or wanted in served.names:
                return model, served
        names = ", ".join(repr(name) for name in self.names)
        raise ModelNotFound(
            f"the model {wanted!r} is not served here; this server has {names}", param="model"
        )
