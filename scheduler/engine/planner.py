"""Who joins the batch with the next step: a plain function of what waits and what is free.

First come, first served, for now. Time budgets, byte budgets and preemption belong here, and nowhere
else: the loop carries out whatever `Plan` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from scheduler.link.messages import Submit


@dataclass(frozen=True, slots=True)
class Plan:
    """What the coming step changes."""

    admit: tuple[Submit, ...]


def plan(waiting: Iterable[Submit], free_slots: int) -> Plan:
    """Admit in order of arrival while slots are free: BatchGenerator's own queue stays empty."""
    return Plan(admit=tuple(islice(waiting, max(0, free_slots))))
