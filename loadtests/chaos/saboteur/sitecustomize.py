"""Fault injection inside the engine process, for faults that cannot be caused from outside. Python loads it
from PYTHONPATH; the product knows nothing of it.

SIGUSR1: the next step raises. SIGUSR2: the next step raises what MLX's allocators raise. SIGHUP: no memory is
left, so MLX on a CPU dies of SIGSEGV without a message. SIGALRM: one of the next evaluations fails as on
Metal, and leaves its arrays unwritten. A request for POISON_TOKENS kills the engine. The file that
ORDER_VARIABLE names makes one step slow, or lets it hang (`../slow_steps.py` writes it).

In the server FLOOR_VARIABLE shortens how long any step may take, and more engine deaths are allowed: an
innocent request may be alone in the engine, without a token yet, at two deaths in a row.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.shared.messages import Begun

POISON_TOKENS = 997
ORDER_VARIABLE = "CHAOS_ORDER_FILE"
FLOOR_VARIABLE = "CHAOS_FLOOR_SECONDS"
BEGUN = ".begun"
"""The suffix of the order's file during its step."""
_BLOCK = bytes(4 << 20)
_SLACK_BYTES = 1 << 20
"""The memory left to an engine."""
_WANTED_BYTES = 64 << 20
"""An allocation that fails then: MLX's pool has no buffer of this size."""
_faults = ExitStack()


def install() -> None:
    from scheduler.engine.backend import StepResult
    from scheduler.engine.loop import EngineLoop
    from scheduler.engine.plan import StepPlan
    from scheduler.shared.messages import Submit

    wanted: list[int] = []

    def wish(number: int, frame: FrameType | None) -> None:
        wanted.append(number)

    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, wish)
    whole_step, whole_receive = EngineLoop._step, EngineLoop._receive

    def step(self: EngineLoop, todo: StepPlan) -> StepResult:
        if wanted and not self.idle:
            match wanted.pop():
                case signal.SIGUSR1:
                    raise RuntimeError("chaos: an exception in a step")
                case signal.SIGUSR2:
                    raise RuntimeError("[malloc] Unable to allocate 8589934592 bytes.")
                case signal.SIGALRM:
                    _fail_an_evaluation()
                case _:
                    _leave_no_memory()
        if todo.computes and ORDER_VARIABLE in os.environ:
            obey(Path(os.environ[ORDER_VARIABLE]), self._begun)
        return whole_step(self, todo)

    def receive(self: EngineLoop, submit: Submit) -> None:
        if submit.max_tokens == POISON_TOKENS:
            os.kill(os.getpid(), signal.SIGSEGV)
        whole_receive(self, submit)

    EngineLoop._step = step  # type: ignore[method-assign]
    EngineLoop._receive = receive  # type: ignore[method-assign]


def obey(order: Path, begun: Begun) -> None:
    """Let this step take the time that the order says, if it is for a step of this work and size."""
    try:
        how, seconds, least_tokens, work = order.read_text().split(maxsplit=3)
    except OSError:
        return
    if work != begun.work or begun.prefill_tokens < int(least_tokens):
        return
    until = time.monotonic() + float(seconds)
    under_way = order.rename(order.with_suffix(BEGUN))
    match how:
        case "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "waits":
            time.sleep(float(seconds))
        case _:
            while time.monotonic() < until:
                hashlib.sha256(_BLOCK)  # It releases the GIL, as a kernel does.
    under_way.unlink()


def _fail_an_evaluation() -> None:
    if "mlx.core" not in sys.modules:
        raise RuntimeError(
            "[METAL] Command buffer execution failed: Internal Error (0000000e:Internal Error)."
        )
    from loadtests.chaos.device_faults import TEXTS, DeviceFault, failing

    # The fault stays until the process ends by it. Each engine gets another text, and fails at another place.
    _faults.enter_context(failing(DeviceFault(1 + os.getpid() % 5, TEXTS[os.getpid() % len(TEXTS)])))


def _leave_no_memory() -> None:
    import resource

    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _SLACK_BYTES, most))
    if "mlx.core" in sys.modules:
        import mlx.core as mx

        mx.eval(mx.zeros(_WANTED_BYTES, mx.uint8))


def _shorten_limits(seconds: float) -> None:
    from scheduler.engines import deadlines

    deadlines.FLOOR_SECONDS = seconds


def _allow_deaths() -> None:
    from scheduler.config import RecoveryConfig

    RecoveryConfig.__init__.__defaults__ = (6, 100_000, *(RecoveryConfig.__init__.__defaults__ or ())[2:])


if "scheduler.engine" in sys.orig_argv:
    install()
elif "serve" in sys.orig_argv:
    _allow_deaths()
    if FLOOR_VARIABLE in os.environ:
        _shorten_limits(float(os.environ[FLOOR_VARIABLE]))
