"""The engines behind the one queue: how they are started, added, drained and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import structlog
import trio

from scheduler.engines.adapters import PoolAdapters
from scheduler.engines.boundary import MOST_ENGINES, EngineTraits
from scheduler.engines.compatibility import Compatibility
from scheduler.engines.dispatcher import Dispatcher
from scheduler.engines.effects import Effects
from scheduler.engines.engine import Engine, Shared
from scheduler.engines.life import Life
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.engines.together import first_ready, life_of_all
from scheduler.errors import (
    LastEngine,
    NodesDecide,
    TooManyEngines,
    UnknownEngine,
)
from scheduler.intake.admission import Admission
from scheduler.intake.expiry import Expiry
from scheduler.intake.queue import IntakeQueue
from scheduler.offload import Offload
from scheduler.processes.process import EngineLauncher
from scheduler.requests.answer_reading import AnswerReading
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import QUEUE, Requests
from scheduler.shared.messages import Ready
from scheduler.statistics import EngineStatistics
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.request_recorder import RequestRecorder

_log = structlog.get_logger("scheduler")


class Pool:
    """`run` must be running. An engine's name is its number, which no later engine gets. `changed`: as
    `Effects` has it."""

    def __init__(
        self,
        traits: EngineTraits,
        requests: Requests,
        queue: IntakeQueue,
        admission: Admission,
        expiry: Expiry,
        recorder: RequestRecorder,
        offload: Offload,
        changed: Callable[[], None],
    ) -> None:
        config = self._config = traits.config
        self._requests = requests
        self._provision = traits.provision
        self.metrics = traits.metrics
        self._telemetry = Containment(self.metrics.server)
        self._engines: dict[str, Engine] = {}
        self.adapters = PoolAdapters(config.engine.adapters)
        self.dispatcher = Dispatcher(
            requests,
            queue,
            self._engines,
            self._session_moved,
            config.recovery.max_request_deaths,
        )
        self.effects = Effects(
            requests,
            self._engines,
            queue,
            admission,
            expiry,
            recorder,
            self.dispatcher,
            self._stop_if_drained,
            changed,
            traits.clock,
        )
        self.reading = AnswerReading(offload, requests, self.effects.stepped)
        self._shared = Shared(
            traits,
            self._engines,
            requests,
            self.effects.stepped,
            self.effects.carry_out,
            self.adapters,
            Compatibility(),
            self.reading,
            self._telemetry,
        )
        self._numbers = count()
        self.loaded = config.load_at_start
        self.engines_join = config.engines_join
        self._nursery: trio.Nursery | None = None
        self._never_ready: EngineNeverReady | None = None
        self._has_served = False
        """Whether an engine that has left the pool was ever ready."""
        for _ in range(config.engines):
            self._new()

    def __len__(self) -> int:
        """Return how many requests the engines hold, or are to resume, or have just ended."""
        return len(self._requests) - len(self._requests.at(QUEUE))

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def __getitem__(self, name: str) -> Engine:
        """Raise UnknownEngine."""
        try:
            return self._engines[name]
        except KeyError:
            raise UnknownEngine(f"there is no engine {name!r}") from None

    @property
    def names(self) -> list[str]:
        return list(self._engines)

    @property
    def records(self) -> Iterator[StreamRecord]:
        """Yield all requests in the pool."""
        return (record for record in self._requests if record.state is not State.QUEUED)

    @property
    def ready(self) -> Ready | None:
        """Return what an engine that is ready has reported; None if none is."""
        return first_ready(self)

    def statistics(self) -> EngineStatistics:
        """Return all engines as one."""
        return life_of_all(self)

    def service_token_seconds(self, output_weight: float) -> float | None:
        """Return the engine time of one token of service, averaged over all engines, or None before it is
        measured."""
        measured = [
            seconds
            for engine in self
            if (seconds := engine.speeds.service_token_seconds(output_weight)) is not None
        ]
        return sum(measured) / len(measured) if measured else None

    async def run(self) -> None:
        """Never returns by itself; cancel it to end the engines. Raise EngineNeverReady if the first engines
        cannot be started, and must."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.reading.run)
            if self.loaded:
                self._start_all()
        if self._never_ready is not None:
            raise self._never_ready

    def load(self) -> None:
        """Start its engines. `unload` must have ended them."""
        assert not self.running, "its engines run"
        self.loaded = True
        self._start_all()

    def _start_all(self) -> None:
        self._telemetry.sample(self.metrics.loads.inc)
        for engine in self:
            self._start(engine)
        self.effects.carry_out()

    def unload(self) -> None:
        """End its engines' processes: they are gone when `running` is false. Requests wait in the queue until
        `load`; engines hold none."""
        assert not len(self), "its engines have requests"
        self.loaded = False
        for engine in self:
            if self._nursery is None:
                engine.forgo()
            else:
                engine.stop()

    @property
    def running(self) -> bool:
        """Return whether a process of its engines may be left."""
        return any(engine.running for engine in self)

    @property
    def failure(self) -> str | None:
        """Return why none of its engines can be started, or None if one may be, or if `run` ends with that
        reason."""
        if self._ends_with_first_engines or not all(engine.failed for engine in self):
            return None
        return next((engine.failure for engine in self), None)

    @property
    def _ends_with_first_engines(self) -> bool:
        return self._config.must_start and not self._was_ready

    @property
    def _was_ready(self) -> bool:
        """Return whether any of its engines ever was."""
        return self._has_served or any(one.supervisor.was_ready for one in self)

    def forgive(self) -> None:
        """Count on engines again that could not be started."""
        for engine in self:
            engine.forgive()
        self.effects.carry_out()

    def _start(self, engine: Engine) -> None:
        if self._nursery is not None:
            if not engine.running:
                engine.begin()
            self._nursery.start_soon(self._run, engine)

    async def _run(self, engine: Engine) -> None:
        given_up: Engine | None = None
        try:
            await engine.run()
        except EngineNeverReady as error:
            self._cannot_start(engine, error)
            # A first load that fails is the service's end, or the fleet's to report.
            given_up = engine if self._was_ready else None
        else:
            if self.loaded or engine.draining:
                self._forget(engine)
        finally:
            engine.share.gone()
        self.effects.carry_out(given_up)

    def _cannot_start(self, engine: Engine, error: EngineNeverReady) -> None:
        assert self._nursery is not None
        if self._ends_with_first_engines:
            self._never_ready = error
            self._nursery.cancel_scope.cancel()
            return
        # An engine was ready before, so that the installation works; or machines or other models must go on.
        _log.error("engine_failed", engine=engine.name, reason=str(error))

    def add(self, launcher: EngineLauncher | None = None) -> Engine:
        """Start a further engine, by `launcher` or like the first ones. Raise TooManyEngines, or NodesDecide
        if engines join by themselves and there is no `launcher`."""
        if launcher is None and self.engines_join:
            raise NodesDecide("there is an engine for each machine that has joined: let another one join")
        if len(self._engines) >= MOST_ENGINES:
            raise TooManyEngines(f"there are {len(self._engines)} engines, as many as there may be")
        engine = self._new(launcher)
        _log.info("engine_added", engine=engine.name)
        if self.loaded:
            self._start(engine)
        self.effects.carry_out()
        return engine

    def retry(self, name: str) -> None:
        """Try again to start an engine that could not be. Raise UnknownEngine."""
        engine = self[name]
        if engine.failed and not engine.running and self.loaded:
            self._start(engine)
            self.effects.carry_out()

    def remove(self, name: str) -> None:
        """Drain an engine whose machine is gone, also the last one: requests wait until another one comes.
        Raise UnknownEngine."""
        self._drain(self[name])

    def drain(self, name: str) -> Engine:
        """Give an engine no new requests, and stop it at the end of those that it has. Raise UnknownEngine,
        LastEngine if no other one is left, or NodesDecide if engines join by themselves."""
        engine = self[name]
        if self.engines_join:
            raise NodesDecide("there is an engine for each machine that has joined: let its machine leave")
        if not any(one is not engine and not one.draining and not one.failed for one in self):
            raise LastEngine(f"engine {name!r} is the only one that is left: add another one first")
        self._drain(engine)
        return engine

    def _drain(self, engine: Engine) -> None:
        if not engine.draining:
            engine.draining = True
            _log.info("engine_draining", engine=engine.name, requests=engine.requests)
            self.effects.carry_out()

    def _new(self, launcher: EngineLauncher | None = None) -> Engine:
        number = next(self._numbers)
        name = str(number)
        engine = self._engines[name] = Engine(
            name,
            launcher or self._provision.launcher_of(number),
            self._provision.share_of(name),
            self._shared,
        )
        if self.loaded:
            engine.begin()
        return engine

    def _stop_if_drained(self, engine: Engine) -> None:
        if not engine.draining or engine.requests:
            return
        if engine.running and self._nursery is not None:
            engine.stop()
        else:
            self._forget(engine)

    def _forget(self, engine: Engine) -> None:
        """Remove an engine that has been stopped."""
        if self._engines.pop(engine.name, None) is not None:
            self._has_served = self._has_served or engine.supervisor.was_ready
            # It may have had a part without a process: its model waits for memory.
            engine.share.gone()
            self._requests.forget(engine.name)
            self.metrics.forget_engine(engine.name)
            _log.info("engine_removed", engine=engine.name)

    def woke(self, now: float) -> None:
        """Count the time until now as no stall: the machine slept."""
        for life in self._lives():
            life.stall.woke(now)

    def _lives(self) -> Iterator[Life]:
        return (engine.life for engine in self if engine.life is not None)

    def _session_moved(self) -> None:
        self._telemetry.sample(self.metrics.session_moves.inc)
