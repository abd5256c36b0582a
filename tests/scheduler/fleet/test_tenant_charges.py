"""Fairness over models: engine time on one counts against a tenant in the queues of the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import pytest

from scheduler.config import FairnessConfig
from scheduler.fleet.fleet import share_charges
from scheduler.intake.fair_queue import FairQueue
from scheduler.intake.service_ledger import Ticket

OUTPUT_TOKENS = 50


class Simulated:
    """A queue before one slot, which takes `token_seconds` for a token of service."""

    def __init__(self, token_seconds: float) -> None:
        self.queue = FairQueue(FairnessConfig(half_life_seconds=1e6, patience_seconds=1e9))
        self.token_seconds = token_seconds
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Engine time by tenant."""
        self._free_at = 0.0

    def serve(self, now: float) -> str | None:
        """The tenant of the request that is served now, if one is."""
        if now < self._free_at or not len(self.queue):
            return None
        ticket = self.queue.pop(now)
        self.queue.charge_actual(ticket, 0, OUTPUT_TOKENS, now)
        seconds = 2 * OUTPUT_TOKENS * self.token_seconds
        self.seconds[ticket.tenant] += seconds
        self._free_at = now + seconds
        return ticket.tenant


def share(models: Iterable[Simulated]) -> None:
    share_charges({one.queue: partial(float, one.token_seconds) for one in models})


def run(models: dict[str, Simulated], backlogged: dict[str, str], seconds: float) -> None:
    """`backlogged`: the tenants that always have requests waiting, by the names of the models that they
    use."""
    number = 0
    now = 0.0
    while now < seconds:
        for name, tenants in backlogged.items():
            queue = models[name].queue
            for tenant in tenants:
                if not any(flow.tenant == tenant for flow in queue.statistics(now)):
                    number += 1
                    queue.push(Ticket(number, tenant, "", 0, 0, 0, OUTPUT_TOKENS, now))
        for one in models.values():
            one.serve(now)
        now += 0.5


@pytest.mark.parametrize("token_seconds", [0.01, 0.02, 0.001], ids=["equal", "slower", "faster"])
def test_a_tenant_that_uses_two_models_gets_no_more_engine_time(token_seconds: float) -> None:
    """A competes with B for one model and has another one for itself: what it gets there is its own, and B
    gets as much of the shared one before A gets any of it."""
    models = {"shared": Simulated(0.01), "other": Simulated(token_seconds)}
    share(models.values())
    run(models, {"shared": "AB", "other": "A"}, 2000.0)
    of_a = models["shared"].seconds["A"] + models["other"].seconds["A"]
    of_b = models["shared"].seconds["B"]
    assert of_b >= 0.9 * of_a or models["shared"].seconds["A"] < 0.05 * of_b
