"""The engine's part: `hooks/sitecustomize.py` installs it in the engine's process, before its loop begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtests.step import record
from loadtests.step.counts import Calls, start_counting, usage
from loadtests.step.parts import Parts, replace
from loadtests.step.record import Run, Step
from scheduler.engine.inbox import Inbox
from scheduler.engine.loop import EngineLoop
from scheduler.shared.messages import StepOutput
from scheduler.shared.wire_struct import WireStruct

if TYPE_CHECKING:
    from scheduler.engine.mlx.batch import Sampled

_COUNTED_STEPS = 2
"""A step whose calls are counted, then one whose operations are: neither count is of the other's work."""


class EngineProfile:
    """Times and counts of the steps of this process. A run begins with the first command after a rest, and is
    written when the loop rests again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = Run()
        self._step = Step()
        self._frames = 0
        self._read_at = 0.0
        self._fresh: dict[int, int] = {}
        """The tokens since the last frame: request id, and which of its answer."""
        self._parts = Parts()
        self._counting = self._running = False
        self._calls: Calls | None = None
        self._stop_counting: Callable[[], None] = lambda: None
        self._wrap_start()

    def _wrap_start(self) -> None:
        """The classes of the model's engine are imported with its libraries, after the process has chosen how
        these are loaded; therefore they are wrapped when the loop is made."""
        whole, profile = EngineLoop.__init__, self

        def start(loop: EngineLoop, backend: Any, *args: Any, **kwargs: Any) -> None:
            profile._wrap(backend)
            whole(loop, backend, *args, **kwargs)

        replace(EngineLoop, "__init__", start)

    def _wrap(self, backend: Any) -> None:
        from loadtests.step.submitted import Submissions
        from scheduler.engine.mlx.backend import MlxBackend
        from scheduler.engine.mlx.batch import DecodeBatch
        from scheduler.engine.mlx.sampling.chooser import Chosen
        from scheduler.engine.mlx.single_rows import SingleRows

        parts = self._parts
        self._submissions = Submissions(parts, "read")
        self._model = type(backend._model).__call__.__code__
        self._used = usage()
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
            parts.measure(owner, name, part)
        self._before(Inbox, "drain_nowait", lambda *_: self._next_step())
        self._before(Chosen, "verify", lambda *_: self._token_read())
        self._before(MlxBackend, "_outcome", lambda _, sampled: self._sampled(sampled))
        self._after(Inbox, "send", lambda _, message: self._sent(message))
        self._after(EngineLoop, "iterate", lambda loop, _: self._rested(loop))

    def _before(self, owner: Any, name: str, call: Callable[..., None]) -> None:
        whole = getattr(owner, name)

        def wrapped(*args: Any) -> Any:
            call(*args)
            return whole(*args)

        replace(owner, name, wrapped)

    def _after(self, owner: Any, name: str, call: Callable[..., None]) -> None:
        whole = getattr(owner, name)

        def wrapped(*args: Any) -> Any:
            result = whole(*args)
            call(*args)
            return result

        replace(owner, name, wrapped)

    # ---- what happens in a step

    def _next_step(self) -> None:
        """End the last step, and begin the next one: here, because the loop reads its commands first."""
        self._stop_counting()
        times = self._parts.end_step()
        if not self._running:
            self._running, self._counting = True, record.is_counting(self._folder)
            self._run = Run()
        else:
            step, used = self._step, usage()
            step.times = times
            step.faults, step.waits, step.lost_cores = (
                now - was for now, was in zip(used, self._used, strict=True)
            )
            operations, evaluations = self._submissions.take()
            if self._calls is not None:
                step.model_calls, step.other_calls = self._calls.model, self._calls.others
            elif self._counting:
                step.operations, step.evaluations = operations, evaluations
            self._run.steps.append(step)
        self._step, self._calls = Step(), None
        if self._counting:
            self._count(len(self._run.steps) % _COUNTED_STEPS == 0)
        self._used = usage()

    def _count(self, calls: bool) -> None:
        self._submissions.counting = not calls
        if calls:
            self._calls, model = Calls(), self._model
            self._stop_counting = start_counting(self._calls, lambda code: code is model)

    def _token_read(self) -> None:
        self._read_at = time.monotonic()

    def _sampled(self, sampled: Sequence[Sampled]) -> None:
        at = self._read_at or time.monotonic()
        self._read_at = 0.0
        last: dict[int, int] = {}
        for one in sampled:
            sequence = one.row.sequence
            last[sequence.request_id] = sequence.generated_tokens
        self._fresh = last
        self._run.sampled += [(request_id, token, at) for request_id, token in last.items()]

    def _sent(self, message: WireStruct) -> None:
        if not isinstance(message, StepOutput):
            return
        self._run.frames.append((self._frames, time.monotonic()))
        self._run.carried += [(request_id, token, self._frames) for request_id, token in self._fresh.items()]
        if not (message.prefills or message.retired):
            self._step.rows = len(self._fresh)
        self._fresh = {}
        self._frames += 1
        self._run.ended += len(message.retired)
        if not self._running and self._run.steps:
            record.append(self._folder / record.ENGINE, self._run)
            self._run = Run()

    def _rested(self, loop: EngineLoop) -> None:
        """End the run with the turn in which its last request ended. That turn's frame is sent after it, and
        then the run is written."""
        if self._running and loop.idle:
            self._stop_counting()
            self._submissions.counting = self._running = False
