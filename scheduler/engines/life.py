"""One process of an engine, from Ready to the end of its link: all that dies with it is a field here."""

from __future__ import annotations

from collections.abc import Callable

import trio

from scheduler.engines.stall_watch import StallWatch
from scheduler.prefix_estimate import PrefixEstimate
from scheduler.processes.inspections import Inspections
from scheduler.shared.messages import Ready, ToEngine
from scheduler.telemetry.engine_totals import EngineTotals


class Life:
    """`likely`: what its prefix cache is likely to have."""

    def __init__(
        self,
        ready: Ready,
        began_at: float,
        send: Callable[[ToEngine], None],
        stall: StallWatch,
        totals: EngineTotals,
        likely: PrefixEstimate,
    ) -> None:
        self.ready = ready
        self.began_at = began_at
        self.send = send
        """Sends a message to the process, or drops it after the process's end."""
        self.stall = stall
        self.totals = totals
        self.likely = likely
        self.inspections = Inspections(send)
        self.budget_inspected = False
        """Whether its KV budget was inspected."""
        self._scope = trio.CancelScope()

    async def watch(self) -> None:
        """Kill it if it hangs. Return at its end."""
        with self._scope:
            await self.stall.run()

    def end(self) -> None:
        """Release all tasks that wait for the process: its link has ended."""
        self._scope.cancel()
        self.inspections.close()
