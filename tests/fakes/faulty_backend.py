"""The scripted back end with faults at chosen moments. The product contains none of them.

In a loopback engine a fault is an exception that the launcher handles. In a separate engine process
(`in_engine_process`) it is real: SIGSEGV, or a call that never returns.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scheduler.engine import scripted_backend
from scheduler.engine.backend import StepResult
from scheduler.engine.drafts.verify_costs import DRAFTED
from scheduler.engine.loop import EngineLoop
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.prefill import Chunk
from scheduler.engine.scripted_backend import ScriptedBackend, _Row
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import Retired, ScriptedPlan, Submit, ToEngine

_FAIL_AT_TOKEN = 3
_THREADS = 16


class EngineDeath(BaseException):
    """The engine ends here, as by SIGSEGV. Not an Exception: no handler may survive it."""


METAL_TIMEOUT = (
    "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer"
    " execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)


class EngineTimeout(EngineDeath):
    """Metal's watchdog ended the process: only `METAL_TIMEOUT` is left, on its stderr."""


class EngineHang(BaseException):
    """This step never returns."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The defaults are healthy. Steps are counted from 1, in each life of the engine."""

    die_at_step: int = 0
    hang_at_step: int = 0
    refuse_token: int = -1
    """Any request whose prompt contains this token is refused."""
    fail_sampler_token: int = -1
    """Any request whose prompt contains this token fails alone, at its third token."""
    grammar_limit_token: int = -1
    """Any request whose prompt contains this token meets a limit of its grammar there."""
    die_token: int = -1
    """The engine dies when it admits a request whose prompt contains this token."""
    most_chunk_tokens: int = 0
    """A step with more prompt tokens takes longer than Metal's watchdog allows; 0: it allows all."""
    timeout_token: int = -1
    """So does any chunk of a request whose prompt contains this token."""


HEALTHY = Faults()


class FaultyBackend(ScriptedBackend):
    """`die`, `hang` and `time_out` do not return."""

    def __init__(
        self,
        plan: ScriptedPlan,
        faults: Faults,
        sleep: Callable[[float], None] = time.sleep,
        *,
        die: Callable[[], NoReturn] | None = None,
        hang: Callable[[], NoReturn] | None = None,
        time_out: Callable[[], NoReturn] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(plan, sleep, **options)
        self._faults = faults
        self._die = die or _raise_death
        self._hang = hang or _raise_hang
        self._time_out = time_out or _raise_timeout
        self._steps_begun = 0

    def check(self, sequence: EngineSequence) -> None:
        super().check(sequence)
        if self._faults.refuse_token in sequence.tokens:
            raise RequestRefused("this prompt is refused on purpose")

    def _admit(self, sequence: EngineSequence) -> None:
        if self._faults.die_token in sequence.tokens:
            self._die()
        super()._admit(sequence)

    def _step(self, plan: StepPlan) -> StepResult:
        self._steps_begun += bool(self._rows)
        if self._steps_begun == self._faults.die_at_step > 0:
            self._die()
        if self._steps_begun == self._faults.hang_at_step > 0:
            self._hang()
        if self._is_too_long(plan.chunks):
            self._time_out()
        return super()._step(plan)

    def _is_too_long(self, chunks: Sequence[Chunk]) -> bool:
        tokens = sum(chunk.tokens for chunk in chunks)
        if 0 < self._faults.most_chunk_tokens < tokens:
            return True
        prompts = (self._rows[chunk.request_id].sequence.tokens for chunk in chunks)
        return any(self._faults.timeout_token in prompt for prompt in prompts)

    def _ended(self, row: _Row, token: int) -> Retired | None:
        sequence = row.sequence
        if (ended := super()._ended(row, token)) is not None:
            return ended
        if sequence.generated_tokens != _FAIL_AT_TOKEN:
            return None
        if self._faults.grammar_limit_token in sequence.prompt():
            return Retired(sequence.request_id, "grammar", "it met a limit on purpose")
        if self._faults.fail_sampler_token not in sequence.prompt():
            return None
        return Retired(sequence.request_id, "failed", "its sampler is broken on purpose")


def in_engine_process(faults: Faults) -> str:
    """The source of a `sitecustomize.py` that gives an engine process these faults, when its folder and the
    repository's root are on PYTHONPATH. Other processes are left as they are."""
    return f"""
import sys
if "scheduler.engine" in sys.orig_argv:
    from tests.fakes.faulty_backend import Faults, install
    install({faults!r})
"""


def install(faults: Faults) -> None:
    """Before `scheduler.engine.__main__` imports the name ScriptedBackend."""

    def make(plan: ScriptedPlan, **options: Any) -> FaultyBackend:
        return FaultyBackend(plan, faults, die=_kill, hang=_sleep_forever, time_out=_abort, **options)

    setattr(scripted_backend, "ScriptedBackend", make)  # noqa: B010 (mypy: a class is replaced)


MOST_STEP_TOKENS = 1 + DRAFTED[-1]
"""Tokens of one row in one step: the step in which an engine holds is not reported before."""


def holding_in_engine_process(streams: int, tokens: int, folder: Path) -> str:
    """As `in_engine_process`, for any back end: an engine stops in the middle of this number of streams while
    the folder has a file `hold`."""
    return f"""
import pathlib, sys
if "scheduler.engine" in sys.orig_argv:
    from tests.fakes.faulty_backend import hold
    hold({streams}, {tokens}, pathlib.Path({str(folder)!r}))
"""


def hold(streams: int, tokens: int, folder: Path) -> None:
    """While the file `hold` exists, requests wait until all `streams` have come, however late a busy machine
    sends the last, and start together. When these have `tokens`, the loop makes the file `held`, and goes on
    when `hold` is gone."""
    turn, emit = EngineLoop.iterate, EngineLoop._emit
    asked, emitted = folder / "hold", 0
    withheld: list[ToEngine] = []

    def gathered(loop: EngineLoop, commands: Iterable[ToEngine]) -> Any:
        taken = list(commands)
        if asked.exists():
            withheld.extend(one for one in taken if isinstance(one, Submit))
            taken = [one for one in taken if not isinstance(one, Submit)]
            if len(withheld) < streams:
                return turn(loop, taken)
        taken += withheld
        withheld.clear()
        return turn(loop, taken)

    def held(loop: EngineLoop, result: StepResult) -> Any:
        nonlocal emitted
        emitted = emitted + len(result.tokens) if asked.exists() else 0
        if emitted >= tokens:
            (folder / "held").touch()
            while asked.exists():
                time.sleep(0.01)
        return emit(loop, result)

    setattr(EngineLoop, "iterate", gathered)  # noqa: B010 (mypy: a method is replaced)
    setattr(EngineLoop, "_emit", held)  # noqa: B010


def _raise_death() -> NoReturn:
    raise EngineDeath


def _raise_hang() -> NoReturn:
    raise EngineHang


def _raise_timeout() -> NoReturn:
    raise EngineTimeout


def _kill() -> NoReturn:
    while True:
        os.kill(os.getpid(), signal.SIGSEGV)


def _abort() -> NoReturn:
    """As libc++abi: the message, and SIGABRT, at which the engine's faulthandler adds the stacks of all
    threads. A real engine has some: readers, grammar compilers."""
    for _ in range(_THREADS):
        threading.Thread(target=_sleep_forever, daemon=True).start()
    os.write(sys.stderr.fileno(), f"{METAL_TIMEOUT}\n".encode())
    os.abort()


def _sleep_forever() -> NoReturn:
    while True:
        time.sleep(3600)
