"""CPU work off the event loop: as much as there are cores, and of what takes much memory one at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import TypeVar

import pytest
import trio
import trio.testing

from api.worker_threads import WorkerThreads

_T = TypeVar("_T")


class Work:
    """Goes on until it is let go."""

    def __init__(self) -> None:
        self.begun = Event()
        self.may_end = Event()

    def __call__(self) -> bool:
        self.begun.set()
        return self.may_end.wait(30)


async def in_large_thread(threads: WorkerThreads, work: Callable[[], _T]) -> _T:
    return await threads(work, large=True)


@pytest.mark.parametrize("leaves", [False, True], ids=["the first client stays", "the first client leaves"])
def test_large_work_waits_for_other_large_work_and_small_work_for_neither(leaves: bool) -> None:
    """Also for what goes on when nobody wants it any more: it still holds its memory."""

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


def test_what_large_work_raises_reaches_its_client() -> None:
    """A refusal, as a rule."""

    def refuse() -> None:
        raise ValueError("too long")

    with pytest.raises(ValueError, match="too long"):
        trio.run(in_large_thread, WorkerThreads(), refuse)


def test_a_library_s_panic_is_the_request_s_alone() -> None:
    """It is no Exception, and would end the server; so it becomes one."""

    class Panic(BaseException):
        pass

    def panic() -> None:
        raise Panic("assertion failed in Rust")

    for large in (False, True):
        with pytest.raises(RuntimeError, match="assertion failed in Rust"):
            trio.run(partial(WorkerThreads(), panic, large=large))
