"""The ways in which a run kills an engine."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum


class Strike(StrEnum):
    KILL = "SIGKILL"
    SEGV = "SIGSEGV"
    STOP = "SIGSTOP, a hung engine"
    MEMORY = "allocation failure, reported"
    NO_MEMORY = "no memory left"
    ERROR = "exception in a step"
    DEVICE = "an error of Metal at an evaluation"


_SIGNALS = {
    Strike.KILL: signal.SIGKILL,
    Strike.SEGV: signal.SIGSEGV,
    Strike.STOP: signal.SIGSTOP,
    Strike.MEMORY: signal.SIGUSR2,
    Strike.NO_MEMORY: signal.SIGHUP,
    Strike.ERROR: signal.SIGUSR1,
    Strike.DEVICE: signal.SIGALRM,
}


def kinds() -> list[Strike]:
    """Return the kinds that this system supports: Darwin does not enforce the limit that NO_MEMORY sets."""
    return [kind for kind in Strike if kind is not Strike.NO_MEMORY or sys.platform == "linux"]


def strike(pid: int, how: Strike) -> None:
    """Strike the engine. Some kinds take effect immediately, some at the next step (`saboteur/`). Raise
    ProcessLookupError if it is gone."""
    os.kill(pid, _SIGNALS[how])
