"""An engine's loop, and all that is heard of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from scheduler.engine.backend import Backend
from scheduler.engine.loop import EngineLoop
from scheduler.engine.planning.pace import PrefillPace
from scheduler.shared.messages import Retired, StepOutput, ToEngine


class HeardLoop:
    """Its clock ticks once a look, unless a test has its own."""

    def __init__(
        self,
        backend: Backend,
        slots: int,
        most_tokens: int = 512,
        clock: Callable[[], float] | None = None,
        **options: Any,
    ) -> None:
        """`options`: more of the loop's."""
        ticks = count()
        tick = clock or (lambda: float(next(ticks)))
        self.loop = EngineLoop(backend, slots, PrefillPace(most_tokens), clock=tick, **options)
        self.tokens: dict[int, list[int]] = {}
        self.retired: dict[int, Retired] = {}

    def iterate(self, *commands: ToEngine) -> Sequence[StepOutput]:
        outputs: list[StepOutput] = []
        for frame in self.loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            outputs.append(frame)
            for out in frame.tokens:
                self.tokens.setdefault(out.request_id, []).append(out.token)
            for retired in frame.retired:
                assert retired.request_id not in self.retired
                self.retired[retired.request_id] = retired
        return outputs

    def finish(self, turns: int = 5000) -> None:
        for _ in range(turns):
            if self.loop.idle:
                return
            self.iterate()
        raise AssertionError("it never ended")
