"""One model of the fleet: its scheduler, and whether its engines are loaded.

It refuses requests for a model that cannot be loaded, and reports what a
request waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog
import trio

from scheduler.errors import Unavailable
from scheduler.fleet.residency import ModelState, Standing
from scheduler.service import ModelLoader, Scheduler

_log = structlog.get_logger("fleet")
_FAILED_STARTS = 3
"""Attempts at a load whose engine dies without a reason."""
RETRY_SECONDS = 60.0
"""After a failed load requests are refused for this long; the next one then starts another attempt."""


class Model(ModelLoader):
    """One model. Only the fleet changes its state, but for `check`, which forgives a failed load after a
    while."""

    def __init__(
        self, name: str, scheduler: Scheduler, *, pinned: bool = False, idle_seconds: float | None = None
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.pinned = pinned
        """Whether it is always loaded, unless an operator unloads it."""
        self.idle_seconds = idle_seconds
        """Unload it after this time without a request; with None only to make room for another model."""
        self.state = ModelState.LOADING if scheduler.pool.loaded else ModelState.UNLOADED
        self.reason: str | None = None
        """Why the last load failed."""
        self.waits: str | None = None
        """What its load waits for, as the fleet has decided."""
        self.notify: Callable[[], None] = lambda: None
        """Called when a request has come or left."""
        self._stage = ""
        self._wanted_at: float | None = None
        """When an operator asked for it to be loaded, or None if none waits for that."""
        self._used_at = self._loaded_at = -math.inf
        self._failed_at = -math.inf
        scheduler.model_loader = self

    # --- as its scheduler's model loader

    def check(self) -> None:
        if self.state is not ModelState.FAILED:
            return
        left = self._failed_at + RETRY_SECONDS - trio.current_time()
        if left > 0:
            raise Unavailable(
                f"the model {self.name!r} cannot be loaded: {self.reason}",
                retry_after_seconds=float(math.ceil(left)),
            )
        self._forgive()

    def changed(self) -> None:
        self.notify()

    @property
    def waits_for(self) -> str:
        pool = self.scheduler.pool
        if pool.ready is not None and not pool.held:
            return ""
        match self.state:
            case ModelState.LOADED:
                # An engine died, and the next one is on its way.
                return ""
            case ModelState.LOADING:
                return f"{self.name}, {self._stage}" if self._stage else f"{self.name} to be loaded"
            case _:
                return self.waits or f"{self.name} to be loaded"

    @property
    def wanted(self) -> bool:
        """Return whether an operator waits for it to be loaded."""
        return self._wanted_at is not None

    @property
    def condition(self) -> str:
        """Return its state, or that of its engines if they are loaded."""
        life = self.scheduler.pool.statistics()
        serves = self.state is ModelState.LOADED
        # Its first engine may be ready before the fleet's next turn.
        if serves or (self.state is ModelState.LOADING and life.ready is not None):
            return life.condition.value
        return self.state.value

    @property
    def memory_bytes(self) -> int:
        """Return what its engines use, as they have reported last; 0 if it is not loaded."""
        engines = self.scheduler.metrics.engines if self.scheduler.pool.ready is not None else ()
        return sum(engine.now.guard.used for engine in engines)

    def loading(self, stage: str) -> None:
        """Take note that its engine has begun a stage of its load."""
        self._stage = stage

    # --- by the fleet

    def standing(self, need_bytes: int) -> Standing:
        return Standing(
            self.name,
            self.state,
            need_bytes,
            self._wanted_since(),
            len(self.scheduler.pool),
            self._used_at,
            self._loaded_at,
            self.pinned,
            self.idle_seconds,
        )

    def follow(self, now: float) -> None:
        """Take note of what its engines and its queue have done."""
        pool = self.scheduler.pool
        if len(pool) or self.scheduler.queue.oldest_at is not None:
            self._used_at = now
        match self.state:
            # A pool with requests had an engine that was ready, if only for a moment.
            case ModelState.LOADING if pool.ready is not None or len(pool):
                self._loaded_at = self._used_at = now
                self._wanted_at = None
                self._move(ModelState.LOADED)
            case ModelState.LOADING if (reason := self._why_failed()) is not None:
                self._failed_at, self.reason = now, reason
                self.scheduler.pool.fail_queued(
                    Unavailable(
                        f"the model {self.name!r} cannot be loaded: {reason}",
                        retry_after_seconds=RETRY_SECONDS,
                    )
                )
                pool.unload()
                self._move(ModelState.UNLOADING)
            case ModelState.UNLOADING if not pool.running:
                pool.held = False
                failed = self.reason is not None
                if not failed:
                    # What kept an engine from starting is of the life that ends here.
                    pool.forgive()
                self._wanted_at = None if failed else self._wanted_at
                self._move(ModelState.FAILED if failed else ModelState.UNLOADED)
            case _:
                pass

    def want(self, now: float) -> None:
        """Take note that an operator asks for it."""
        if self.state is ModelState.FAILED:
            self._forgive()
        self._used_at = now
        if self.state is ModelState.DRAINING:
            self.scheduler.pool.held = False
            self._move(ModelState.LOADED)
            self.scheduler.pool.reconcile()
        elif self.state is not ModelState.LOADED:
            self._wanted_at = now

    def load(self) -> None:
        self._stage = ""
        self._move(ModelState.LOADING)
        self.scheduler.pool.load()

    def hold(self) -> None:
        """Give its engines no new requests, so that it can be unloaded."""
        self.scheduler.pool.held = True
        self._move(ModelState.DRAINING)

    def unload(self) -> None:
        """End the processes of its engines, which must have no requests."""
        self._move(ModelState.UNLOADING)
        self.scheduler.pool.held = True
        self.scheduler.pool.unload()

    def give_up(self) -> None:
        """Unload it, or stop its load, as an operator asks. Requests that wait have it loaded again."""
        # Its engines may be ready, and have requests, since the fleet's last iteration.
        self.follow(trio.current_time())
        self._wanted_at = None
        match self.state:
            case ModelState.LOADED:
                self.hold()
            case ModelState.LOADING:
                self.unload()
            case _:
                pass

    def refuse_queued(self, reason: str) -> None:
        """Refuse the queued requests: no wait would help them."""
        self._wanted_at = None
        self.scheduler.pool.fail_queued(Unavailable(reason, retry_after_seconds=RETRY_SECONDS))

    def _wanted_since(self) -> float | None:
        oldest = self.scheduler.queue.oldest_at
        return oldest if self._wanted_at is None else min(self._wanted_at, oldest or math.inf)

    def _why_failed(self) -> str | None:
        """Return why its engines do not start, or None if they still may."""
        if self.scheduler.pool.engines_join:
            # A machine that can load it may join at any time.
            return None
        if (failure := self.scheduler.pool.failure) is not None:
            return failure
        life = self.scheduler.pool.statistics()
        if life.ready is not None or life.failed_starts < _FAILED_STARTS:
            return None
        return life.last_death

    def _forgive(self) -> None:
        self.reason = None
        self.scheduler.pool.forgive()
        self._move(ModelState.UNLOADED)

    def _move(self, state: ModelState) -> None:
        self.state = state
        reason = {} if self.reason is None else {"reason": self.reason}
        _log.info("model_state", model=self.name, state=state.value, **reason)
