"""The stages of a request, shared by the service, the engine's events and the operators' reports.

A file of its own because three classes need it and should not see each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.intake.admission import Admission
from scheduler.intake.dispatcher import Dispatcher
from scheduler.intake.expiry import Expiry
from scheduler.intake.queue import IntakeQueue
from scheduler.link.pending_inspections import PendingInspections
from scheduler.recovery.stall_watch import StallWatch
from scheduler.requests.multiplexer import Multiplexer


@dataclass(frozen=True, slots=True)
class Stages:
    queue: IntakeQueue
    admission: Admission
    multiplexer: Multiplexer
    dispatcher: Dispatcher
    expiry: Expiry
    stall: StallWatch
    inspections: PendingInspections
