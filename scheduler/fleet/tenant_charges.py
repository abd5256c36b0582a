"""Tenants charged over all models: engine time on one counts against a tenant in the queues of the others.

Each model's queue keeps accounts of its own (`intake/service_ledger.py`). Every charge to a tenant is also
made in the other queues, converted by the engine time of a token of service on each model, so that a tenant
cannot double its share of the device by using two models. Sessions are not charged: they compete within a
tenant, and an agent's session is on one model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from scheduler.intake.fair_queue import FairQueue

Seconds: TypeAlias = Callable[[], float | None]
"""Returns a model's engine time of one token of service, or None before it is measured."""


def share_charges(queues: Mapping[FairQueue, Seconds]) -> None:
    """Make each charge in one of these models' queues in the others, too."""

    def spread(charged: FairQueue, priority: int, tenant: str, tokens: float, at: float, now: float) -> None:
        for queue, seconds in queues.items():
            if queue is not charged:
                # Until both are measured, a token counts as much here as there.
                there, here = queues[charged](), seconds()
                ratio = there / here if there and here else 1.0
                queue.charge_elsewhere(priority, tenant, tokens * ratio, at, now)

    for queue in queues:
        queue.on_charge = partial(spread, queue)
