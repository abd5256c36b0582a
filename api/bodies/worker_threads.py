"""CPU work off the event loop: a bounded number of threads, shared fairly by tenant."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import trio

from api.bodies.garbage import LARGE_WORK
from scheduler.offload import Lane

_T = TypeVar("_T")


class WorkerThreads:
    """Implements `scheduler.offload.Offload`.

    Each lane has threads of its own, so that large work and grammar compilation leave the others' threads
    free. A thread counts until its work is done, even if its client has disconnected.
    """

    def __init__(self, cores: int | None = None) -> None:
        cores = cores or os.cpu_count() or 1
        self._lanes = {
            Lane.PLAIN: FairLimiter(max(2, cores)),
            Lane.LARGE: FairLimiter(1),
            Lane.ANSWER: FairLimiter(1),
            Lane.GRAMMAR: FairLimiter(max(2, cores - 1), per_tenant=1),
        }

    async def __call__(self, work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
        guarded = _and_give_back if lane is Lane.LARGE else _alone
        # trio documents that any object with these two methods will do.
        place = cast("trio.CapacityLimiter", _Place(self._lanes[lane], tenant))
        return await trio.to_thread.run_sync(lambda: guarded(work), abandon_on_cancel=True, limiter=place)


class FairLimiter:
    """A limiter with `total` places, at most `per_tenant` of them for one tenant. Waiting tenants take turns;
    requests of one tenant are served in order of arrival."""

    def __init__(self, total: int, per_tenant: int | None = None) -> None:
        self._total = total
        self._per_tenant = total if per_tenant is None else per_tenant
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[trio.Event]] = OrderedDict()
        """Queues in the order of turns. No queue in it is empty."""

    async def acquire(self, tenant: str) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        turn = trio.Event()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._grant()
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                # Granted at the moment when the client disconnected.
                self.release(tenant)
            else:
                self._forget(tenant, turn)
            raise

    def release(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._grant()

    def _grant(self) -> None:
        while self._taken.total() < self._total:
            free = (name for name in self._waiting if self._taken[name] < self._per_tenant)
            if (tenant := next(free, None)) is None:
                return
            turn = self._waiting[tenant].popleft()
            self._waiting.move_to_end(tenant)
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            self._taken[tenant] += 1
            turn.set()

    def _forget(self, tenant: str, turn: trio.Event) -> None:
        self._waiting[tenant].remove(turn)
        if not self._waiting[tenant]:
            del self._waiting[tenant]


@dataclass(frozen=True, slots=True)
class _Place:
    """A limiter for `trio.to_thread`: it releases the place when the thread has ended."""

    limiter: FairLimiter
    tenant: str

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self.limiter.acquire(self.tenant)

    def release_on_behalf_of(self, borrower: object) -> None:
        self.limiter.release(self.tenant)


def _alone(work: Callable[[], _T]) -> _T:
    """Turn a failure into an error of one request. A panic of a Rust library (tokenizers, llguidance) is not
    an Exception, and would end the server with every stream."""
    try:
        return work()
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"a library failed: {error}") from error


def _and_give_back(work: Callable[[], _T]) -> _T:
    """Run without the cycle collector, which would stop all threads up to five times, each time for up to
    0.4 s."""
    LARGE_WORK.begin()
    try:
        return _alone(work)
    finally:
        LARGE_WORK.end()
