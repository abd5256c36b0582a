"""Tenants charged over all models: engine time on one counts against a tenant in the queues of the others.

Each model's queue keeps accounts of its own (`intake/service_ledger.py`). Every charge to a tenant is also
made in the other queues, converted by the engine time of a token of service on each model, so that a tenant
cannot double its share of the device by using two models. Sessions are not charged: they compete within a
tenant, and an agent's session is on one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from scheduler.intake.fair_queue import Charge


class ChargedModel(Protocol):
    """A model's queue and its speed."""

    @property
    def service_token_seconds(self) -> float | None:
        """Return the engine time of one token of service, or None before it is measured."""
        ...

    def on_charge(self, charged: Charge) -> None:
        """Call `charged` for every charge to a tenant, with the priority, the tenant's name, the tokens of
        service (negative for a refund), the time from which they decay, and now."""
        ...

    def charge_elsewhere(self, priority: int, tenant: str, tokens: float, at: float, now: float) -> None: ...


class TenantCharges:
    """Makes each charge on one of these models in the queues of the others, too."""

    def __init__(self, models: Sequence[ChargedModel]) -> None:
        self._models = tuple(models)
        for model in models:
            model.on_charge(partial(self._spread, model))

    def _spread(
        self, charged: ChargedModel, priority: int, tenant: str, tokens: float, at: float, now: float
    ) -> None:
        for model in self._models:
            if model is not charged:
                # Until both are measured, a token counts as much here as there.
                there, here = charged.service_token_seconds, model.service_token_seconds
                ratio = there / here if there and here else 1.0
                model.charge_elsewhere(priority, tenant, tokens * ratio, at, now)
