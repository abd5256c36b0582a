"""Kill a hung engine: one that has work and makes no step.

What a step is, the engine reports before it begins it (`Begun`): the limit follows from that, whatever
becomes of the step's requests meanwhile. `look` decides, for the given time; `run` sleeps between the looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sized

import trio

from scheduler.engines.deadlines import StepDeadlines, TimedStep
from scheduler.shared.messages import Alive, Begun, Inspect, Inspection, Pulse, StepOutput, ToEngine

_LOOK_SECONDS = 1.0
"""Longest pause between two looks: the limit may shrink meanwhile, as steps are observed."""
_QUERY = 0
"""Query number of an inspection that no caller waits for."""
_WORKING_SHARE = 0.05
"""A process that uses this much of one core computes. One that hangs on a lock or on the device, or is
stopped, uses none; beside ten busy programs on two cores a step had a fifth."""
_FRESH_SECONDS = 10.0
"""A reply older than this says nothing of now. On a busy machine replies came after seconds."""


class StallWatch:
    """Decides whether one process hangs; the process is ready `now`. `deadlines`: its engine's; `on_board`:
    its requests; `send` reaches it, and `kill` ends it. `replaceable`: whether others could take its
    requests, so that a wrong verdict costs them little."""

    def __init__(
        self,
        deadlines: StepDeadlines,
        on_board: Sized,
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
        self._seen = (0, 0)
        self._last_step_at: float | None = None
        self.begun = Begun("reading", ())
        """What the process does, as it has reported."""
        self._silent = False
        """Whether nothing has come of what it does."""
        self._progressed_at = now
        self._pulses: list[tuple[float, float]] = []
        """When the first and the last reply to a Pulse came since then, and the processor time in each."""
        deadlines.engine_started()

    def woke(self, now: float) -> None:
        """Count the silence until now as no stall: work arrived at an idle engine."""
        self._progressed_at = now
        self._pulses.clear()

    def began(self, begun: Begun, now: float) -> None:
        """Take note of what the process does from now on. What it did before is over: a step may have had
        nothing to report, such as a prefill for a resumed request."""
        if self._silent:
            self._observe(now)
        self.begun, self._silent = begun, True
        self.woke(now)

    def stepped(self, output: StepOutput, now: float) -> None:
        """A step's output has arrived. Output that only says what requests wait for is of no step."""
        if not (output.tokens or output.prefills or output.retired):
            return
        self._observe(now)
        self._last_step_at, self._silent = now, False
        self.woke(now)
        self._seen = (output.counters.steps, output.counters.disk.reads)

    def _observe(self, now: float) -> None:
        if self.begun.requests and self.begun.work != "reading":
            self._deadlines.observe(self._step, now - self._progressed_at)

    @property
    def _step(self) -> TimedStep:
        return TimedStep(self.begun.work, self.begun.context_tokens, self.begun.prefill_tokens)

    def answered(self, inspection: Inspection, now: float) -> None:
        """Take note of a reply. Only the reply to our own inspection counts, and only if steps or disk reads
        advanced since the last one: an engine that makes no progress replies, too."""
        if inspection.query != _QUERY:
            return
        done = (inspection.steps, 0 if inspection.disk is None else inspection.disk.reads)
        if done != self._seen:
            self._seen = done
            self.woke(now)

    def pulsed(self, alive: Alive, now: float) -> None:
        """Take note of the processor time that the process has used."""
        self._pulses[1:] = [(now, alive.cpu_seconds)]

    def seconds(self, now: float) -> float:
        """Return seconds without progress; 0 while none is expected."""
        return now - self._progressed_at if len(self._on_board) else 0.0

    def last_step_seconds(self, now: float) -> float | None:
        """Return the age of the last step, busy or idle, or None before the first."""
        return None if self._last_step_at is None else now - self._last_step_at

    def limit_seconds(self, now: float) -> float:
        """Return how long `seconds` may get in this step. A step that computes is slow and does not hang:
        only the operator's ceiling bounds it."""
        return self._deadlines.ceiling_seconds if self._computing(now) else self._usual_seconds

    @property
    def _usual_seconds(self) -> float:
        return self._deadlines.limit_seconds(self._step, sooner=self._replaceable())

    def _computing(self, now: float) -> bool:
        """Return whether the process has used its processor in this step, as far as the system shows it: not
        for what the device computes meanwhile."""
        if len(self._pulses) < 2:
            return False
        (first_at, first_cpu), (last_at, last_cpu) = self._pulses
        fresh = now - last_at <= _FRESH_SECONDS
        return fresh and last_cpu - first_cpu >= _WORKING_SHARE * (last_at - first_at)

    def look(self, now: float) -> float:
        """Inspect or kill the engine if it is time to. Return when to look again."""
        limit = self.limit_seconds(now)
        end_at = self._progressed_at + limit
        if not self.seconds(now):
            end_at = now + limit
        elif now >= end_at:
            self._kill(f"no step for {limit:.3g} seconds, with requests on board ({self.begun.work})")
            end_at = now + limit
        elif now >= self._progressed_at + self._usual_seconds / 2:
            # It sends no output while it reads from disk; and in a slow step it uses its processor.
            self._send(Inspect(_QUERY, top=0))
            self._send(Pulse())
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
