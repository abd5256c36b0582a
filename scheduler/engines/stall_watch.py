"""Kill a hung engine: one that has work and makes no step.

`look` decides, for the given time; `run` sleeps between the looks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from scheduler.engines.deadlines import StepDeadlines, TimedStep, Work, next_step
from scheduler.requests.record import StreamRecord
from scheduler.shared.messages import Inspect, Inspection, StepOutput, ToEngine

_LOOK_SECONDS = 1.0
"""Longest pause between two looks: the limit may shrink meanwhile, as steps are observed."""
_QUERY = 0
"""Query number of an inspection that no caller waits for."""


class StallWatch:
    """Decides whether one process hangs; the process is ready `now`. `deadlines`: its engine's; `on_board`:
    its requests; `send` reaches it, and `kill` ends it. `replaceable`: whether others could take its
    requests, so that a wrong verdict costs them little."""

    def __init__(
        self,
        deadlines: StepDeadlines,
        on_board: Collection[StreamRecord],
        send: Callable[[ToEngine], None],
        kill: Callable[[str], None],
        now: float,
        replaceable: Callable[[], bool] = lambda: False,
    ) -> None:
        self._deadlines = deadlines
        self._on_board = on_board
        self._send = send
        self._kill = kill
        self._replaceable = replaceable
        self._progressed_at = now
        self._seen = (0, 0)
        self._last_step_at: float | None = None
        deadlines.engine_started()

    def woke(self, now: float) -> None:
        """Count the silence until now as no stall: work arrived at an idle engine, or the machine slept."""
        self._progressed_at = now

    def stepped(self, output: StepOutput, now: float) -> None:
        """A step's output has arrived. Call this before routing it: routing changes the rows on board. Output
        that only answers SetMemoryLimit is of no step."""
        if not (output.tokens or output.prefills or output.retired):
            return
        if self._on_board and not self._prefills_again():
            taken = TimedStep(_work(output), next_step(self._on_board).context_tokens)
            self._deadlines.observe(taken, now - self._progressed_at)
        self._last_step_at = self._progressed_at = now
        self._seen = (output.counters.steps, output.counters.cache.disk_reads)

    def answered(self, inspection: Inspection, now: float) -> None:
        """Take note of a reply. Only the reply to our own inspection counts, and only if steps or disk reads
        advanced since the last one: an engine that makes no progress replies, too."""
        if inspection.query != _QUERY or inspection.engine is None:
            return
        done = (inspection.engine.steps, 0 if inspection.disk is None else inspection.disk.reads)
        if done != self._seen:
            self._seen, self._progressed_at = done, now

    def seconds(self, now: float) -> float:
        """Return seconds without progress; 0 while none is expected."""
        return now - self._progressed_at if self._on_board else 0.0

    def last_step_seconds(self, now: float) -> float | None:
        """Return the age of the last step, busy or idle, or None before the first."""
        return None if self._last_step_at is None else now - self._last_step_at

    def limit_seconds(self) -> float:
        """Return how long `seconds` may get, with the requests on board."""
        return self._deadlines.limit_seconds(next_step(self._on_board), sooner=self._replaceable())

    def look(self, now: float) -> float:
        """Inspect or kill the engine if it is time to. Return when to look again."""
        limit = self.limit_seconds()
        end_at = self._progressed_at + limit
        if not self.seconds(now):
            end_at = now + limit
        elif now >= end_at:
            work = next_step(self._on_board).work.value
            self._kill(f"no step for {limit:.3g} seconds, with requests on board ({work})")
            end_at = now + limit
        elif now >= self._progressed_at + limit / 2:
            # It sends no output while it reads from disk, or prefills again for resumed requests.
            self._send(Inspect(_QUERY, top=0))
        return min(end_at, now + min(_LOOK_SECONDS, limit / 4))

    def overslept(self, seconds: float, now: float) -> None:
        """Do not count `seconds` against the engine for which the server itself did not run (a closed lid, a
        frozen container)."""
        if seconds > _LOOK_SECONDS:
            self._progressed_at = min(now, self._progressed_at + seconds)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            look_at = self.look(trio.current_time())
            await trio.sleep_until(look_at)
            now = trio.current_time()
            self.overslept(now - look_at, now)

    def _prefills_again(self) -> bool:
        """Return whether the time since the last output may cover several steps."""
        return any(record.resumed and not record.trusted for record in self._on_board)


def _work(output: StepOutput) -> Work:
    """Return what the step computed, as far as its output shows."""
    if not output.prefills:
        return Work.DECODE
    return Work.CHUNK if output.tokens else Work.PROMPT
