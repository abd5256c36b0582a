"""Fault injection inside the engine process, for faults that cannot be caused from outside. Python loads it
from PYTHONPATH; the product knows nothing of it.

SIGUSR1: the next step raises. SIGUSR2: the next step raises what MLX's allocators raise. SIGHUP: no memory is
left, so MLX on a CPU dies of SIGSEGV without a message. SIGALRM: one of the next evaluations fails as on
Metal, and leaves its arrays unwritten. A request for POISON_TOKENS kills the engine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from types import FrameType

POISON_TOKENS = 997
LIVE_VARIABLE = "CHAOS_LIVE_FILE"
"""Names the file that gets the bytes of MLX's live buffers, once a second."""
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

    written_at = 0.0

    def step(self: EngineLoop, todo: StepPlan) -> StepResult:
        nonlocal written_at
        if time.monotonic() > written_at + 1 and LIVE_VARIABLE in os.environ:
            written_at = time.monotonic()
            _write_live_bytes(os.environ[LIVE_VARIABLE])
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
        return whole_step(self, todo)

    def receive(self: EngineLoop, submit: Submit) -> None:
        if submit.max_tokens == POISON_TOKENS:
            os.kill(os.getpid(), signal.SIGSEGV)
        whole_receive(self, submit)

    EngineLoop._step = step  # type: ignore[method-assign]
    EngineLoop._receive = receive  # type: ignore[method-assign]


def _write_live_bytes(path: str) -> None:
    if "mlx.core" not in sys.modules:
        return  # A scripted engine: the import would take seconds.
    import mlx.core as mx

    with open(path, "w") as file:
        file.write(str(mx.get_active_memory()))


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


if "scheduler.engine" in sys.orig_argv:
    install()
