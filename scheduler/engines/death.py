"""Why an engine died, from its stderr and exit status, and what deaths in a row mean. Pure: `now` is an
argument.

An error of the device is an exception in a step (`../shared/device_errors.py`), whose text is the last line
of a traceback. Before MLX 0.32.1 Metal ended the process inside a completion handler, as an allocator may
still: then only the text that libc++abi wrote to stderr is left.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.config import RecoveryConfig
from scheduler.processes.process import Exit
from scheduler.shared.device_errors import DeviceFault, device_fault
from scheduler.statistics import DeathCause


@dataclass(frozen=True, slots=True)
class Death:
    """`detail` is the line of its stderr that names the reason, if there is one."""

    cause: DeathCause
    detail: str | None = None


_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
"""Signals that no fault of the engine's own code raises."""
_OF_DEVICE = {DeathCause(fault.value) for fault in DeviceFault}
_TRACEBACK = "Traceback (most recent call last):"


def read_stderr(lines: Sequence[str], returncode: int | None) -> Death:
    """Return the cause of a death that the server did not cause, from the last `lines` of stderr and the exit
    status (negative for a signal). The latest line that matches decides: the engine survived the errors above
    it."""
    for line in reversed(lines):
        if (fault := device_fault(line)) is not None:
            return Death(DeathCause(fault.value), line.strip())
    if returncode in _FROM_OUTSIDE or returncode is None:
        # An exception on stderr is one that the engine survived: one that ends it leaves a positive status.
        # An engine on another machine leaves none: its own failures are messages, and what ends it without
        # one is mostly the network, the machine's owner or its system.
        return Death(DeathCause.KILLED)
    if (exception := _last_exception(lines)) is not None:
        return Death(DeathCause.FAULT, exception)
    return Death(DeathCause.CRASHED if returncode < 0 else DeathCause.EXIT)


def conclude(seen: DeathCause, lines: Sequence[str], exit_: Exit) -> Death:
    """Combine the causes. `seen` is the supervisor's view: how the exchange with the engine ended; `lines`:
    of stderr. The supervisor's own causes (HUNG, STOPPED) stay; otherwise a memory or device error on stderr
    is more precise than EXIT, FAULT or START."""
    read = read_stderr(lines, exit_.returncode)
    match seen:
        case DeathCause.EXIT if read.cause is DeathCause.KILLED and exit_.ended_by_us:
            # The engine had closed its link and did not exit, so that it was killed here.
            return Death(DeathCause.EXIT)
        case DeathCause.EXIT if read.cause is DeathCause.KILLED and exit_.out_of_memory:
            return Death(DeathCause.OUT_OF_MEMORY, "the kernel killed it for lack of memory")
        case DeathCause.EXIT:
            return read
        case DeathCause.FAULT | DeathCause.START:
            return read if read.cause in _OF_DEVICE else Death(seen, read.detail)
        case _:
            return Death(seen)


def _last_exception(lines: Sequence[str]) -> str | None:
    """Return the exception line of the last traceback: its first line that is not indented."""
    starts = [place for place, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if not starts:
        return None
    return next((line.strip() for line in lines[starts[-1] + 1 :] if line[:1] not in ("", " ")), None)


class CrashLoopBreaker:
    """Stops admission in a crash loop: `max_engine_deaths` within the window."""

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._deaths: deque[float] = deque(maxlen=config.max_engine_deaths)

    def died(self, now: float) -> None:
        self._deaths.append(now)

    def reason(self, now: float) -> str | None:
        """Return why admission is closed, or None if it is open."""
        window, bound = self._config.death_window_seconds, self._config.max_engine_deaths
        if len(self._deaths) < bound or now - self._deaths[0] > window:
            return None
        return f"the engine died {bound} times within {window:g} seconds"
