"""Keep one engine alive: start it, wait for READY, deliver its messages, restart it with backoff.

Restarting is a state of the service, not an exception in another task. The listener (`engine_events.py`)
decides what an engine's death means for the requests on board.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar, assert_never

import structlog
import trio

from scheduler.config import SupervisionConfig
from scheduler.errors import LinkError, StartupError
from scheduler.link.channel import Channel, EngineGone
from scheduler.link.messages import (
    PROTOCOL_VERSION,
    AdapterLoaded,
    Fault,
    FromEngine,
    Inspection,
    Load,
    Loading,
    Ready,
    StepOutput,
    ToEngine,
)
from scheduler.link.process import EngineLauncher, Exit, LaunchFailed, LaunchRefused
from scheduler.recovery.deadlines import load_limit_seconds
from scheduler.recovery.death import Death, conclude
from scheduler.statistics import DeathCause, EngineCondition, EngineStatistics

_log = structlog.get_logger("supervisor")
_T = TypeVar("_T")


class EngineListener(Protocol):
    """Receives the engine's messages. Called in the task that reads the link: nothing here may wait."""

    def engine_loading(self, stage: str) -> None: ...
    def engine_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None: ...
    def engine_output(self, output: StepOutput) -> None: ...
    def engine_inspected(self, inspection: Inspection) -> None: ...
    def engine_adapter_loaded(self, reply: AdapterLoaded) -> None: ...
    def engine_lost(self, cause: str) -> None: ...
    def engine_died(self, death: Death) -> None:
        """After `engine_lost`, when the process has ended and its stderr is read; not called for an engine
        that was stopped on purpose."""
        ...


class EngineFault(Exception):
    """The engine reported why it cannot continue, or did not become ready in time."""

    def __init__(self, error: str, stack: str = "") -> None:
        super().__init__(error)
        self.stack = stack


class EngineNeverReady(StartupError):
    """The engine could not be started at all: the model or the installation is broken."""


_FIRST_STARTS = 3
"""Attempts for a first engine that dies without a reason before READY; one that reports a reason gets one."""


_LOGGED_LINES = 64
"""Of stderr's end, beside the cause: each line is in the log already."""


@dataclass(slots=True)
class EngineLife:
    """One engine process, from start to end. Times are trio's clock."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Around the exchange of messages, once the process runs."""
    ready: Ready | None = None
    became_ready_at: float | None = None
    cause: str = "the engine process ended"
    """Why its life ended."""
    death: DeathCause = DeathCause.EXIT
    reported_fault: bool = False
    refused: bool = False
    """Whether no further one should be tried."""
    stack: str = ""
    """The traceback of a load that failed."""

    def lasted(self, seconds: float) -> bool:
        """Whether it has been ready for at least `seconds`."""
        return self.became_ready_at is not None and trio.current_time() - self.became_ready_at >= seconds


class Supervisor:
    """Owns the engine process for as long as `run` runs, which may be several times."""

    def __init__(
        self,
        launcher: EngineLauncher,
        load: Callable[[], Load],
        listener: EngineListener,
        config: SupervisionConfig,
        refusal: Callable[[Ready], str] = lambda ready: "",
    ) -> None:
        """`load` is called once for each engine. `refusal`: why an engine that says this of itself must not
        serve, and no further one be tried; empty: it may."""
        self._launcher = launcher
        self._load = load
        self._listener = listener
        self._config = config
        self._refusal = refusal
        self._life: EngineLife | None = None
        """The engine that is loading or ready; None before its process runs and after its end."""
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
    def linked(self) -> bool:
        """Whether an engine's process runs: it loads, or is ready."""
        return self._life is not None

    @property
    def was_ready(self) -> bool:
        """Whether any of its engines ever was."""
        return self._slowest_load_seconds is not None

    @property
    def _condition(self) -> EngineCondition:
        if self._life is not None and self._life.ready is not None:
            return EngineCondition.READY
        return EngineCondition.STARTING if self._death_cause is None else EngineCondition.RESTARTING

    def declare_hung(self, cause: str) -> None:
        """End a running engine that makes no progress, and start the next one."""
        if self._life is not None and self._life.ready is not None:
            self._life.cause = cause
            self._life.scope.cancel()

    async def run(self) -> None:
        """Never returns by itself; cancel it to end the engine.

        Raises EngineNeverReady if the first engine reports that it cannot start, or the first three all fail;
        and if any engine, or the machine that it should run on, is refused.
        """
        backoff = self._config.backoff_first_seconds
        # A load that was stopped did not fail.
        self._failed_starts = 0
        if self._death_cause is DeathCause.STOPPED:
            self._death_cause = None
        while True:
            life = EngineLife()
            try:
                exit_ = await self._launcher.run(partial(self._session, life))
            except LaunchFailed as error:
                exit_ = self._not_launched(life, str(error))
            except LaunchRefused as error:
                self._not_launched(life, str(error))
                raise EngineNeverReady(str(error)) from error
            # Its Fault counts as the last line of stderr: the same text, and never cut off.
            last_words = (*exit_.last_stderr, *life.stack.splitlines(), life.cause)
            death = conclude(life.death, last_words, exit_)
            self._death_cause = death.cause
            detail = "" if death.detail is None or death.detail in life.cause else f": {death.detail}"
            self._last_death = f"{life.cause}; the engine {exit_}{detail}"
            self._report(self._listener.engine_died, death)
            if life.refused:
                raise EngineNeverReady(life.cause)
            if self._slowest_load_seconds is None and (
                life.reported_fault or self._failed_starts >= _FIRST_STARTS
            ):
                # A reported fault is a whole sentence for the operator.
                raise EngineNeverReady(life.cause if life.reported_fault else self._last_death + _hint(exit_))
            if life.lasted(self._config.stable_seconds):
                backoff = self._config.backoff_first_seconds
            self._restarts += 1
            _log.error(
                "engine_died",
                cause=death.cause.value,
                reason=life.cause,
                detail=death.detail,
                exit=str(exit_),
                restarts=self._restarts,
                restart_in_seconds=backoff,
                last_stderr=exit_.last_stderr[-_LOGGED_LINES:],
            )
            await trio.sleep(backoff)
            backoff = min(backoff * 2, self._config.backoff_limit_seconds)

    def _not_launched(self, life: EngineLife, cause: str) -> Exit:
        """A failed start like any other: reported to the listener, and retried with backoff."""
        life.cause, life.death = cause, DeathCause.START
        self._failed_starts += 1
        self._report(self._listener.engine_lost, cause)
        return Exit(None)

    @staticmethod
    def _report(report: Callable[[_T], None], fact: _T) -> None:
        """Tell the listener that an engine ended. A bug in the listener must not stop the restarts."""
        try:
            report(fact)
        except Exception:
            _log.exception("engine_listener_failed")

    async def _session(self, life: EngineLife, channel: Channel) -> None:
        """From Load to the engine's end. Afterwards `life` has the cause."""
        self._life = life
        try:
            with life.scope:
                await self._exchange(life, channel)
            # Only `declare_hung` cancels the scope; `_exchange` does not return by itself.
            life.death = DeathCause.HUNG
            channel.unresponsive = True
        except EngineGone:
            pass
        except (EngineFault, LinkError) as fault:
            life.cause, life.death, life.reported_fault = str(fault), DeathCause.FAULT, True
            if isinstance(fault, EngineFault) and fault.stack:
                life.stack = fault.stack
                _log.debug("engine_load_failed", stack=life.stack)
        except trio.Cancelled:
            life.death = DeathCause.STOPPED
            raise
        except Exception as error:
            # A bug in the parent. The step may be half delivered, which resuming allows for.
            _log.exception("engine_message_failed")
            life.cause = f"a message of the engine could not be handled: {type(error).__name__}: {error}"
            life.death, life.reported_fault = DeathCause.FAULT, True
        finally:
            # Also after cancellation: requests on board must not wait for this engine any longer.
            self._life = None
            if life.became_ready_at is None:
                # Before the report: the listener reads this number.
                self._failed_starts += 1
                if life.death is not DeathCause.STOPPED:
                    life.death = DeathCause.START
            self._death_cause = life.death
            self._report(self._listener.engine_lost, life.cause)

    async def _exchange(self, life: EngineLife, channel: Channel) -> None:
        channel.send_nowait(self._load())
        ready: Ready | None = None
        started_at = trio.current_time()
        limit = load_limit_seconds(self._slowest_load_seconds, self._config.ready_seconds)
        with trio.move_on_after(limit):
            ready = await self._wait_ready(channel)
        if ready is None:
            # The launcher then sends SIGABRT: its stacks show where the load hangs.
            channel.unresponsive = True
            raise EngineFault(f"the engine was not ready within {limit:.3g} seconds")
        if ready.refused_adapters and not self.was_ready:
            # An operator who starts a server with an adapter wants to know, not to find it missing.
            raise EngineFault(ready.refused_adapters[0][1])
        if refusal := self._refusal(ready):
            life.refused = True
            raise EngineFault(refusal)
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
                case AdapterLoaded() as reply:
                    self._listener.engine_adapter_loaded(reply)
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
                case Fault(error=error, stack=stack):
                    raise EngineFault(error, stack)
                case StepOutput() | Inspection() | AdapterLoaded():
                    raise LinkError(f"the engine sent {type(message).__name__} before it was ready")
                case _:
                    assert_never(message)


def _hint(exit_: Exit) -> str:
    """What may be behind an engine's end before READY for which it gave no reason."""
    return ": the system may lack memory for the model" if exit_.returncode == -signal.SIGKILL else ""
