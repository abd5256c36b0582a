"""Keeps one engine alive: start, READY within a deadline, route what it says, restart with backoff.

Restarting is a state of the service, not an exception in anybody's task. What an engine's death means
for the requests on board is the listener's to decide (`service.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, assert_never

import structlog
import trio

from scheduler.config import SupervisionConfig
from scheduler.errors import LinkError, StartupError
from scheduler.link.channel import Channel, EngineGone
from scheduler.link.death import Death, DeathCause, conclude
from scheduler.link.load_deadline import load_limit_seconds
from scheduler.link.messages import (
    PROTOCOL_VERSION,
    Fault,
    FromEngine,
    Inspection,
    Load,
    Loading,
    Ready,
    StepOutput,
    ToEngine,
)
from scheduler.link.process import EngineLauncher, Exit, LaunchFailed

_log = structlog.get_logger("supervisor")


class Condition(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The supervisor's view of its engine at one moment."""

    condition: Condition
    restarts: int
    failed_starts: int
    """Engines in a row that died before they were ready."""
    last_death: str | None
    ready: Ready | None
    death_cause: DeathCause | None = None
    """Of the last one that died. Until its process has ended and its stderr is read: how the talk with it
    came to its end."""


class EngineListener(Protocol):
    """Who hears what the engine says. Called in the reader's task: nothing here may wait."""

    def engine_loading(self, stage: str) -> None: ...
    def engine_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None: ...
    def engine_output(self, output: StepOutput) -> None: ...
    def engine_inspected(self, inspection: Inspection) -> None: ...
    def engine_lost(self, cause: str) -> None: ...
    def engine_died(self, death: Death) -> None:
        """After `engine_lost`, when the process has ended and its stderr is read; not of an engine that
        was stopped."""
        ...


class EngineFault(Exception):
    """The engine said why it cannot go on, or did not become ready in time."""


class EngineNeverReady(StartupError):
    """The engine could not be started at all: the model or the installation is broken."""


_FIRST_STARTS = 3
"""An engine that dies silently before it was ever ready gets as many tries; one that says why gets one."""


class Supervisor:
    """Owns the engine process for as long as `run` runs."""

    def __init__(
        self,
        launcher: EngineLauncher,
        load: Callable[[], Load],
        listener: EngineListener,
        config: SupervisionConfig,
    ) -> None:
        """`load` is asked anew for each engine."""
        self._launcher = launcher
        self._load = load
        self._listener = listener
        self._config = config
        self._condition = Condition.STARTING
        self._restarts = 0
        self._last_death: str | None = None
        self._ready: Ready | None = None
        self._became_ready_at: float | None = None
        self._slowest_load_seconds: float | None = None
        self._failed_starts = 0
        self._said_fault = False
        self._cause = ""
        self._death_cause: DeathCause | None = None
        self._life: trio.CancelScope | None = None

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            self._condition,
            self._restarts,
            self._failed_starts,
            self._last_death,
            self._ready,
            self._death_cause,
        )

    def condemn(self, cause: str) -> None:
        """The running engine does nothing any more: its life ends here, and the next one begins."""
        if self._life is not None and self._ready is not None:
            self._cause = cause
            self._life.cancel()

    async def run(self) -> None:
        """Never returns by itself; cancel it to end the engine.

        Raises EngineNeverReady where the first engine says that it cannot start, or none of three does.
        """
        backoff = self._config.backoff_first_seconds
        while True:
            try:
                exit_ = await self._launcher.run(self._session)
            except LaunchFailed as error:
                exit_ = self._not_launched(str(error))
            assert self._death_cause is not None, "a session ended without a cause"
            # What it said over the link counts as its last line: the same words, and there is always room.
            death = conclude(self._death_cause, (*exit_.last_stderr, self._cause), exit_.returncode)
            self._death_cause = death.cause
            told = "" if death.telling is None or death.telling in self._cause else f": {death.telling}"
            self._last_death = f"{self._cause}; the engine {exit_}{told}"
            self._listener.engine_died(death)
            if self._slowest_load_seconds is None and (
                self._said_fault or self._failed_starts >= _FIRST_STARTS
            ):
                raise EngineNeverReady(self._last_death)
            settled = (
                self._became_ready_at is not None
                and trio.current_time() - self._became_ready_at >= self._config.settled_seconds
            )
            if settled:
                backoff = self._config.backoff_first_seconds
            self._restarts += 1
            _log.error(
                "engine_died",
                cause=death.cause.value,
                said=self._cause,
                telling=death.telling,
                exit=str(exit_),
                restarts=self._restarts,
                restart_in_seconds=backoff,
                last_stderr=exit_.last_stderr,
            )
            await trio.sleep(backoff)
            backoff = min(backoff * 2, self._config.backoff_limit_seconds)

    def _not_launched(self, cause: str) -> Exit:
        """A start that failed like any other: the listener hears of it, and the next one waits its time."""
        self._became_ready_at, self._cause, self._death_cause = None, cause, DeathCause.START
        self._failed_starts += 1
        self._listener.engine_lost(cause)
        return Exit(None)

    async def _session(self, channel: Channel) -> None:
        """One engine's life, from Load to its end. Returns when it is over, and says why in `_cause`."""
        self._became_ready_at = None
        self._cause, death = "the engine process ended", DeathCause.EXIT
        try:
            with trio.CancelScope() as self._life:
                await self._talk(channel)
            # Here only if it was condemned: it does not stop talking by itself.
            death = DeathCause.WEDGE
            channel.unresponsive = True
        except EngineGone:
            pass
        except (EngineFault, LinkError) as fault:
            self._cause, death = str(fault), DeathCause.FAULT
            self._said_fault = True
        except trio.Cancelled:
            death = DeathCause.STOPPED
            raise
        finally:
            self._life = None
            # Also when cancelled: whoever waits for this engine must hear that it will not answer.
            self._condition = Condition.RESTARTING
            self._ready = None
            if self._became_ready_at is None:
                # Before the listener hears of it: it decides by this number.
                self._failed_starts += 1
                if death is not DeathCause.STOPPED:
                    death = DeathCause.START
            self._death_cause = death
            self._listener.engine_lost(self._cause)

    async def _talk(self, channel: Channel) -> None:
        channel.send_nowait(self._load())
        ready: Ready | None = None
        started_at = trio.current_time()
        limit = load_limit_seconds(self._slowest_load_seconds, self._config.ready_seconds)
        with trio.move_on_after(limit):
            ready = await self._wait_ready(channel)
        if ready is None:
            # Where it hangs is what whoever is to mend it needs.
            channel.unresponsive = True
            raise EngineFault(f"the engine was not ready within {limit:.3g} seconds")
        self._became_ready_at = now = trio.current_time()
        self._slowest_load_seconds = max(now - started_at, self._slowest_load_seconds or 0.0)
        self._failed_starts = 0
        self._condition, self._ready = Condition.READY, ready
        self._listener.engine_ready(ready, channel.send_nowait)
        while True:
            match await channel.receive():
                case StepOutput() as output:
                    self._listener.engine_output(output)
                case Inspection() as inspection:
                    self._listener.engine_inspected(inspection)
                case Fault(error=error):
                    raise EngineFault(error)
                case Loading() | Ready() as message:
                    raise LinkError(f"the engine sent {type(message).__name__} after it was ready")
                case message:
                    assert_never(message)

    async def _wait_ready(self, channel: Channel) -> Ready:
        while True:
            message: FromEngine = await channel.receive()
            match message:
                case Ready(version=version) if version != PROTOCOL_VERSION:
                    raise EngineFault(f"the engine speaks protocol {version}, not {PROTOCOL_VERSION}")
                case Ready():
                    return message
                case Loading(stage=stage):
                    self._listener.engine_loading(stage)
                case Fault(error=error):
                    raise EngineFault(error)
                case StepOutput() | Inspection():
                    raise LinkError(f"the engine sent {type(message).__name__} before it was ready")
                case _:
                    assert_never(message)
