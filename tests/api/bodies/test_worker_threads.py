"""CPU work off the event loop: one thread a core, and memory-heavy work one at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import TypeVar

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.bodies.worker_threads import FairLimiter, WorkerThreads
from scheduler.offload import Lane

_T = TypeVar("_T")


class Work:
    """Work that runs until the test releases it."""

    def __init__(self) -> None:
        self.begun = Event()
        self.may_end = Event()

    def __call__(self) -> bool:
        self.begun.set()
        return self.may_end.wait(30)


async def in_large_thread(threads: WorkerThreads, work: Callable[[], _T]) -> _T:
    return await threads(work, lane=Lane.LARGE)


@pytest.mark.parametrize("leaves", [False, True], ids=["the first client stays", "the first client leaves"])
def test_large_work_waits_for_other_large_work_and_small_work_for_neither(leaves: bool) -> None:
    """Also behind work whose client has disconnected: it still holds its memory."""

    async def main() -> None:
        threads, first, second = WorkerThreads(), Work(), Work()
        async with trio.open_nursery() as nursery, trio.open_nursery() as clients:
            clients.start_soon(in_large_thread, threads, first)
            assert await threads(partial(first.begun.wait, 30))
            if leaves:
                clients.cancel_scope.cancel()
            nursery.start_soon(in_large_thread, threads, second)
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                assert await threads(lambda: "small") == "small"
                assert not second.begun.is_set()
                first.may_end.set()
                assert await threads(partial(second.begun.wait, 30))
                second.may_end.set()

    trio.run(main)


def test_a_library_s_panic_is_the_request_s_alone() -> None:
    """A panic is not an Exception, and would end the server; it is converted to one."""

    class Panic(BaseException):
        pass

    def panic() -> None:
        raise Panic("assertion failed in Rust")

    for lane in Lane:
        with pytest.raises(RuntimeError, match="assertion failed in Rust"):
            trio.run(partial(WorkerThreads(), panic, lane=lane))


@trio_test
async def test_tenants_take_turns() -> None:
    """A newcomer waits for one of the others' requests, not for all that came before it."""
    limiter, order = FairLimiter(1), list[str]()

    async def one(tenant: str) -> None:
        await limiter.acquire(tenant)
        order.append(tenant)
        await trio.lowlevel.checkpoint()
        limiter.release(tenant)

    await limiter.acquire("a")
    async with trio.open_nursery() as nursery:
        for tenant in "aaaabbc":
            nursery.start_soon(one, tenant)
            await trio.testing.wait_all_tasks_blocked()
        limiter.release("a")
    assert "".join(order) == "abcabaa"


@trio_test
async def test_a_tenant_has_no_more_places_than_its_own_bound() -> None:
    """The other places stay free for others; a place whose client left before taking it is not lost."""
    limiter = FairLimiter(3, per_tenant=1)
    await limiter.acquire("a")
    with trio.move_on_after(0) as gone:
        await limiter.acquire("a")
    assert gone.cancelled_caught
    await limiter.acquire("b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.acquire, "a")
        await trio.testing.wait_all_tasks_blocked()
        await limiter.acquire("c")
        limiter.release("a")
    # Granted and cancelled at the same moment.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.acquire, "a")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        limiter.release("a")
    with trio.fail_after(5):
        await limiter.acquire("a")


def test_a_plain_request_is_prepared_while_unknown_grammars_wait() -> None:
    """Also of the same tenant: without keys there is only one. And one tenant's grammars leave another's a
    thread."""

    async def main() -> None:
        threads = WorkerThreads(cores=1)
        ours = [Work() for _ in range(9)]
        theirs = Work()
        async with trio.open_nursery() as nursery:
            for work in ours:
                nursery.start_soon(partial(threads, work, tenant="ours", lane=Lane.GRAMMAR))
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(30):
                assert await threads(lambda: "plain", tenant="ours") == "plain"
                nursery.start_soon(partial(threads, theirs, tenant="theirs", lane=Lane.GRAMMAR))
                assert await threads(partial(theirs.begun.wait, 20))
            assert sum(work.begun.is_set() for work in ours) == 1
            for work in (*ours, theirs):
                work.may_end.set()

    trio.run(main)
