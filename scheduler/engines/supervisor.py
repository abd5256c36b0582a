"""Keep one engine alive: start it, wait for READY, deliver its messages, restart it with backoff.

Restarting is a state of the service, not an exception in another task. The engine (`engine.py`) decides
what the end of a process means for the requests on board.
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
from scheduler.engines.condition import EngineEvent, EngineState, condition_of, move
from scheduler.engines.deadlines import load_limit_seconds
from scheduler.engines.death import Death, conclude
from scheduler.errors import LinkError, StartupError
from scheduler.processes.channel import Channel, EngineGone
from scheduler.processes.process import EngineLauncher, Exit, LaunchFailed
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    Alive,
    Begun,
    Fault,
    FromEngine,
    Inspection,
    Load,
    Loading,
    Ready,
    StepOutput,
    ToEngine,
)
from scheduler.statistics import DeathCause, EngineCondition

_log = structlog.get_logger("supervisor")
_T = TypeVar("_T")


class Supervised(Protocol):
    """The engine of a supervisor. Called in the task that reads the link: only `load` may wait."""

    async def load(self) -> Load:
        """Return what its next process is to load. Raise OSError if the model's files cannot be read."""
        ...

    def loading(self, stage: str) -> None: ...
    def process_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None:
        """A process is ready. `send` sends to it."""
        ...

    def began(self, begun: Begun) -> None: ...
    def step(self, output: StepOutput) -> None: ...
    def replied(self, reply: Inspection | Alive) -> None: ...
    def lost(self, cause: str) -> None:
        """The process's link has ended, or it could not be started."""
        ...

    def died(self, death: Death) -> None:
        """Called after `lost`, when the process has ended and its stderr is read; not called for one that was
        stopped on purpose."""
        ...


class EngineFault(Exception):
    """The engine reported why it cannot continue, or did not become ready in time."""

    def __init__(self, error: str, stack: str = "") -> None:
        super().__init__(error)
        self.stack = stack


class EngineNeverReady(StartupError):
    """The engine could not be started at all: the model or the installation is broken, or it is unlike its
    pool's engines."""


_FIRST_STARTS = 3
"""Attempts for a first engine that dies without a reason before READY; one that reports a reason gets one."""


_LOGGED_LINES = 64
"""Number of stderr's last lines that are logged beside the cause: each line is in the log already."""


@dataclass(slots=True)
class Ending:
    """How one engine process ends, or could not be started. Times are trio's clock."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """The scope of the exchange of messages, once the process runs."""
    became_ready_at: float | None = None
    cause: str = "the engine process ended"
    death: DeathCause = DeathCause.EXIT
    reported_fault: bool = False
    refused: bool = False
    """Whether no further process should be tried."""
    stack: str = ""
    """The traceback of a load that failed."""

    def lasted(self, seconds: float) -> bool:
        """Return whether the process has been ready for at least `seconds`."""
        return self.became_ready_at is not None and trio.current_time() - self.became_ready_at >= seconds


class Supervisor:
    """Owns the engine process for as long as `run` runs, which may be several times."""

    def __init__(
        self,
        launcher: EngineLauncher,
        engine: Supervised,
        config: SupervisionConfig,
        refusal: Callable[[Ready], str] = lambda ready: "",
    ) -> None:
        """`refusal` returns why an engine with this report must not serve, and no further one be tried, or an
        empty string if it may."""
        self._launcher = launcher
        self._engine = engine
        self._config = config
        self._refusal = refusal
        self.state = EngineState.ABSENT
        self.failure: str | None = None
        """Why no start is tried any more, or None if one may be."""
        self.restarts = 0
        self.failed_starts = 0
        """Processes in a row that ended before they were ready, or could not be started."""
        self.death_cause: DeathCause | None = None
        """The cause of the last death. Preliminary (how the link ended) until the process has exited and its
        stderr is read."""
        self._ending: Ending | None = None
        """The coming end of the process that is loading or ready; None before it runs and after its end."""
        self._scope = trio.CancelScope()
        self._slowest_load_seconds: float | None = None
        self._last_death: str | None = None

    @property
    def condition(self) -> EngineCondition:
        return condition_of(self.state, died=self.death_cause is not None)

    @property
    def last_death(self) -> str | None:
        return self._last_death if self.failure is None else self.failure

    @property
    def linked(self) -> bool:
        """Return whether an engine's process runs: it loads, or is ready."""
        return self._ending is not None

    @property
    def running(self) -> bool:
        """Return whether `run` runs or is about to, so that there may be a process."""
        return self.state not in (EngineState.ABSENT, EngineState.FAILED)

    @property
    def was_ready(self) -> bool:
        """Return whether any of its processes was ever ready."""
        return self._slowest_load_seconds is not None

    def begin(self) -> None:
        """Call this where `run` follows in another task."""
        self._move(EngineEvent.BEGIN)
        self._scope = trio.CancelScope()
        self.failure = None
        # A load that was stopped did not fail.
        self.failed_starts = 0
        if self.death_cause is DeathCause.STOPPED:
            self.death_cause = None

    def abort_start(self) -> None:
        """Take back `begin`: `run` does not follow."""
        if self.running:
            self._move(EngineEvent.GONE)

    def forgive(self) -> None:
        """Let an engine that could not be started be tried again."""
        if self.state is EngineState.FAILED:
            self._move(EngineEvent.FORGIVE)
            self.failure = None

    def stop(self) -> None:
        """End the process, and `run`."""
        if self.running:
            self._move(EngineEvent.STOP)
            self._scope.cancel()

    def declare_hung(self, cause: str) -> None:
        """End a running engine that makes no progress, and start the next one."""
        if self._ending is not None and self._ending.became_ready_at is not None:
            self._ending.cause = cause
            self._ending.scope.cancel()

    async def run(self) -> None:
        """Return when it has been stopped.

        Raise EngineNeverReady if the first engine reports that it cannot start, or the first three all fail;
        and if any engine is refused.
        """
        if not self.running:
            self.begin()
        try:
            with self._scope:
                await self._keep_alive()
        finally:
            self._move(EngineEvent.GONE)

    async def _keep_alive(self) -> None:
        pause_seconds = self._config.backoff_first_seconds
        while True:
            ending = Ending()
            try:
                exit_ = await self._launcher.run(partial(self._session, ending))
            except LaunchFailed as error:
                exit_ = self._not_launched(ending, str(error))
            # What was stopped meanwhile has not failed, and no further one is started.
            await trio.lowlevel.checkpoint_if_cancelled()
            # The engine's Fault counts as the last line of stderr: it is the same text, and never cut off.
            last_words = (*exit_.last_stderr, *ending.stack.splitlines(), ending.cause)
            death = conclude(ending.death, last_words, exit_)
            self.death_cause = death.cause
            detail = "" if death.detail is None or death.detail in ending.cause else f": {death.detail}"
            self._last_death = f"{ending.cause}; the engine {exit_}{detail}"
            self._report(self._engine.died, death)
            if ending.refused:
                raise self._never_ready(ending.cause)
            if self._slowest_load_seconds is None and (
                ending.reported_fault or self.failed_starts >= _FIRST_STARTS
            ):
                # A reported fault is a whole sentence for the operator.
                raise self._never_ready(
                    ending.cause if ending.reported_fault else self._last_death + _hint(exit_)
                )
            if ending.lasted(self._config.stable_seconds):
                # Its end is no failure to start.
                pause_seconds = self._config.backoff_first_seconds
            self.restarts += 1
            _log.error(
                "engine_died",
                cause=death.cause.value,
                reason=ending.cause,
                detail=death.detail,
                exit=str(exit_),
                restarts=self.restarts,
                restart_in_seconds=pause_seconds,
                last_stderr=exit_.last_stderr[-_LOGGED_LINES:],
            )
            await trio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, self._config.backoff_limit_seconds)
            self._move(EngineEvent.RETRY)

    def _move(self, event: EngineEvent) -> None:
        self.state = move(self.state, event)

    def _never_ready(self, reason: str) -> EngineNeverReady:
        self._move(EngineEvent.GIVE_UP)
        self.failure = reason
        return EngineNeverReady(reason)

    def _not_launched(self, ending: Ending, cause: str) -> Exit:
        """Report a process that could not be launched like any other failed start, which is retried with
        backoff."""
        ending.cause, ending.death = cause, DeathCause.START
        self.failed_starts += 1
        self._move(EngineEvent.END)
        self._report(self._engine.lost, cause)
        return Exit(None)

    @staticmethod
    def _report(report: Callable[[_T], None], fact: _T) -> None:
        """Tell the engine that its process ended. A bug there must not stop the restarts."""
        try:
            report(fact)
        except Exception:
            _log.exception("engine_report_failed")

    async def _session(self, ending: Ending, channel: Channel) -> None:
        """Run from Load to the engine's end. Afterwards `ending` has the cause."""
        self._ending = ending
        try:
            with ending.scope:
                await self._exchange(ending, channel)
            # Only `declare_hung` cancels the scope; `_exchange` does not return by itself.
            ending.death = DeathCause.HUNG
            channel.unresponsive = True
        except EngineGone:
            pass
        except (EngineFault, LinkError) as fault:
            ending.cause, ending.death, ending.reported_fault = str(fault), DeathCause.FAULT, True
            if isinstance(fault, EngineFault) and fault.stack:
                ending.stack = fault.stack
                _log.debug("engine_load_failed", stack=ending.stack)
        except trio.Cancelled:
            ending.death = DeathCause.STOPPED
            raise
        except Exception as error:
            # A bug in the server. The step may be half delivered, which resuming allows for.
            _log.exception("engine_message_failed")
            ending.cause = f"a message of the engine could not be handled: {type(error).__name__}: {error}"
            ending.death, ending.reported_fault = DeathCause.FAULT, True
        finally:
            # Also after cancellation: requests on board must not wait for this engine any longer.
            self._ending = None
            if ending.became_ready_at is None:
                # Before the report: the engine reads this number.
                self.failed_starts += 1
                if ending.death is not DeathCause.STOPPED:
                    ending.death = DeathCause.START
            self.death_cause = ending.death
            self._move(EngineEvent.END)
            self._report(self._engine.lost, ending.cause)

    async def _exchange(self, ending: Ending, channel: Channel) -> None:
        try:
            channel.send_nowait(await self._engine.load())
        except OSError as unread:
            raise EngineFault(f"the model's files cannot be read: {unread}") from unread
        ready: Ready | None = None
        started_at = trio.current_time()
        limit = load_limit_seconds(self._slowest_load_seconds, self._config.ready_seconds)
        with trio.move_on_after(limit):
            ready = await self._wait_ready(channel)
        if ready is None:
            # A child of this process then gets SIGABRT: its stacks show where the load hangs.
            channel.unresponsive = True
            raise EngineFault(f"the engine was not ready within {limit:.3g} seconds")
        if ready.refused_adapters and not self.was_ready:
            # An operator who starts a server with an adapter wants to know, not to find it missing.
            raise EngineFault(ready.refused_adapters[0][1])
        if refusal := self._refusal(ready):
            ending.refused = True
            raise EngineFault(refusal)
        ending.became_ready_at = trio.current_time()
        self._slowest_load_seconds = max(
            ending.became_ready_at - started_at, self._slowest_load_seconds or 0.0
        )
        self.failed_starts = 0
        self._move(EngineEvent.READY)
        self._engine.process_ready(ready, channel.send_nowait)
        while True:
            message: FromEngine = await channel.receive()
            match message:
                case Begun():
                    self._engine.began(message)
                case StepOutput():
                    self._engine.step(message)
                case Inspection() | Alive():
                    self._engine.replied(message)
                case Fault(error=error):
                    raise EngineFault(error)
                case Loading() | Ready():
                    raise LinkError(f"the engine sent {type(message).__name__} after it was ready")
                case _:
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
                    self._engine.loading(stage)
                case Fault(error=error, stack=stack):
                    raise EngineFault(error, stack)
                case Begun() | StepOutput() | Inspection() | Alive():
                    raise LinkError(f"the engine sent {type(message).__name__} before it was ready")
                case _:
                    assert_never(message)


def _hint(exit_: Exit) -> str:
    """Return what may be behind an engine's end before READY for which it gave no reason."""
    return ": the system may lack memory for the model" if exit_.returncode == -signal.SIGKILL else ""
