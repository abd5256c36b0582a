"""The engine's part: `hooks/sitecustomize.py` installs it in the engine's process, before its loop begins."""

from __future__ import annotations

from typing import Any

from loadtests.step.steps import Report, Steps, around
from scheduler.engine.inbox import Inbox
from scheduler.engine.loop import EngineLoop
from scheduler.shared.messages import StepOutput


class EngineProfile:
    """A run begins with the first command after a rest, and is sent when the loop rests again."""

    def __init__(self) -> None:
        self._report = Report("engine")
        self._steps = Steps()
        self._running = False
        # The classes of the model's engine are imported with its libraries, after the process has chosen how
        # these are loaded.
        around(EngineLoop, "__init__", before=lambda _, backend, *args, **kwargs: self._wrap(backend))

    def _wrap(self, backend: Any) -> None:
        from loadtests.step.graph import count_graphs
        from scheduler.engine.mlx.backend import MlxBackend
        from scheduler.engine.mlx.batch import DecodeBatch
        from scheduler.engine.mlx.single_rows import SingleRows

        self._steps.model = type(backend._model).__call__.__code__
        count_graphs(self._steps)
        for owner, name, part in (
            (Inbox, "drain_nowait", "drain"),
            (EngineLoop, "_drain", "drain"),
            (EngineLoop, "_plan", "plan"),
            (EngineLoop, "_begin", "plan"),
            (EngineLoop, "_step", "account"),
            (DecodeBatch, "_submit", "graph"),
            (DecodeBatch, "_draw", "sample"),
            (DecodeBatch, "_emit", "read"),
            (SingleRows, "decode", "graph"),
            (MlxBackend, "_outcome", "read"),
            (EngineLoop, "_emit", "emit"),
            (Inbox, "send", "send"),
        ):
            self._steps.parts.measure(owner, name, part)
        # A step begins here, because the loop reads its commands first.
        around(Inbox, "drain_nowait", before=self._next_step)
        around(Inbox, "send", after=lambda _, __, message: self._sent(message))
        around(EngineLoop, "iterate", after=lambda _, loop, *args: self._rested(loop))

    def _next_step(self, *_: Any) -> None:
        if self._running:
            self._steps.end()
        else:
            self._running = True
            self._steps.begin(self._report.is_counting())

    def _sent(self, message: Any) -> None:
        if not isinstance(message, StepOutput):
            return
        rows = {token.request_id for token in message.tokens}
        self._steps.rows = 0 if message.prefills or message.retired else len(rows)
        self._steps.run.ended += len(message.retired)
        if not self._running and self._steps.run.steps:
            self._report.send(self._steps.run)
            self._steps.begin(False)
            self._steps.rest()

    def _rested(self, loop: EngineLoop) -> None:
        """End the run with the turn in which its last request ended. That turn's frame is sent after it, and
        then the run is sent."""
        if self._running and loop.idle:
            self._running = False
            self._steps.rest()
