"""Keeps one engine alive: start, READY within a deadline, route what it says, restart with backoff.

Restarting is a state of the service, not an exception in anybody's task. What an engine's death means
for the requests on board is the listener's to decide (`service.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, assert_never

import structlog
import trio

from scheduler.config import SupervisionConfig
from scheduler.errors import LinkError, StartupError
from scheduler.link.channel import Channel, EngineGone
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
from scheduler.recovery.deadlines import load_limit_seconds
from scheduler.recovery.death import Death, conclude
from scheduler.statistics import DeathCause, EngineCondition, EngineStatistics

_log = structlog.get_logger("supervisor")


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


@dataclass(slots=True)
class EngineLife:
    """One engine, from its start to its end. Times are trio's clock."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Of the talk with it, once its process runs."""
    ready: Ready | None = None
    became_ready_at: float | None = None
    cause: str = "the engine process ended"
    """Why its life ended."""
    death: DeathCause = DeathCause.EXIT
    said_fault: bool = False

    def lasted(self, seconds: float) -> bool:
        """Whether it has been ready for so long, or was until its end."""
        return self.became_ready_at is not None and trio.current_time() - self.became_ready_at >= seconds


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
        self._life: EngineLife | None = None
        """The engine that loads or is ready; None before its process runs and after its end."""
        self._restarts = 0
        self._failed_starts = 0
        self._slowest_load_seconds: float | None = None
        self._last_death: str | None = None
        self._death_cause: DeathCause | None = None

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            self._condition,
            self._restarts,
            self._failed_starts,
            self._last_death,
            None if self._life is None else self._life.ready,
            self._death_cause,
        )

    @property
    def _condition(self) -> EngineCondition:
        if self._life is not None and self._life.ready is not None:
            return EngineCondition.READY
        return EngineCondition.STARTING if self._death_cause is None else EngineCondition.RESTARTING

    def declare_hung(self, cause: str) -> None:
        """The running engine does nothing any more: its life ends here, and the next one begins."""
        if self._life is not None and self._life.ready is not None:
            self._life.cause = cause
            self._life.scope.cancel()

    async def run(self) -> None:
        """Never returns by itself; cancel it to end the engine.

        Raises EngineNeverReady where the first engine says that it cannot start, or none of three does.
        """
        backoff = self._config.backoff_first_seconds
        while True:
            life = EngineLife()
            try:
                exit_ = await self._launcher.run(partial(self._session, life))
            except LaunchFailed as error:
                exit_ = self._not_launched(life, str(error))
            # What it said over the link counts as its last line: the same words, and there is always room.
            death = conclude(life.death, (*exit_.last_stderr, life.cause), exit_.returncode)
            self._death_cause = death.cause
            told = "" if death.telling is None or death.telling in life.cause else f": {death.telling}"
            self._last_death = f"{life.cause}; the engine {exit_}{told}"
            self._listener.engine_died(death)
            if self._slowest_load_seconds is None and (
                life.said_fault or self._failed_starts >= _FIRST_STARTS
            ):
                raise EngineNeverReady(self._last_death)
            if life.lasted(self._config.stable_seconds):
                backoff = self._config.backoff_first_seconds
            self._restarts += 1
            _log.error(
                "engine_died",
                cause=death.cause.value,
                said=life.cause,
                telling=death.telling,
                exit=str(exit_),
                restarts=self._restarts,
                restart_in_seconds=backoff,
                last_stderr=exit_.last_stderr,
            )
            await trio.sleep(backoff)
            backoff = min(backoff * 2, self._config.backoff_limit_seconds)

    def _not_launched(self, life: EngineLife, cause: str) -> Exit:
        """A start that failed like any other: the listener hears of it, and the next one waits its time."""
        life.cause, life.death = cause, DeathCause.START
        self._failed_starts += 1
        self._listener.engine_lost(cause)
        return Exit(None)

    async def _session(self, life: EngineLife, channel: Channel) -> None:
        """From Load to the engine's end. Returns when it is over; `life` has the cause."""
        self._life = life
        try:
            with life.scope:
                await self._talk(life, channel)
            # Here only if it was condemned: it does not stop talking by itself.
            life.death = DeathCause.HUNG
            channel.unresponsive = True
        except EngineGone:
            pass
        except (EngineFault, LinkError) as fault:
            life.cause, life.death, life.said_fault = str(fault), DeathCause.FAULT, True
        except trio.Cancelled:
            life.death = DeathCause.STOPPED
            raise
        except Exception as error:
            # A bug on this side. The step may be half delivered, which is what resuming is made for.
            _log.exception("engine_message_failed")
            life.cause = f"what the engine said could not be handled: {type(error).__name__}: {error}"
            life.death, life.said_fault = DeathCause.FAULT, True
        finally:
            # Also when cancelled: whoever waits for this engine must hear that it will not answer.
            self._life = None
            if life.became_ready_at is None:
                # Before the listener hears of it: it decides by this number.
                self._failed_starts += 1
                if life.death is not DeathCause.STOPPED:
                    life.death = DeathCause.START
            self._death_cause = life.death
            self._listener.engine_lost(life.cause)

    async def _talk(self, life: EngineLife, channel: Channel) -> None:
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
        life.ready, life.became_ready_at = ready, trio.current_time()
        self._slowest_load_seconds = max(life.became_ready_at - started_at, self._slowest_load_seconds or 0.0)
        self._failed_starts = 0
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
