"""Between a request and its stream: accepted requests are released, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler import prefix_estimate
from scheduler.events import Failed, Finished
from scheduler.intake import queue
from scheduler.offload import Lane
from scheduler.prompt import preparation
from scheduler.service import Scheduler
from scheduler.shared.messages import Submit, ToEngine
from scheduler.shared.token_ids import TokenIds
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running

_T = TypeVar("_T")


class BugError(Exception):
    """An unexpected exception."""


def raise_once(part: Any, method: str, call: int) -> None:
    """`part.method` raises at that call, instead of its work."""
    real, calls = getattr(part, method), 0

    def broken(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise BugError(method)
        return real(*args)

    setattr(part, method, broken)


def check_nothing_is_left(scheduler: Scheduler) -> None:
    report = scheduler.operations.report()
    assert (len(scheduler.queue), report.queue.prompt_tokens, report.running) == (0, 0, ())
    assert scheduler.queue.tenants == len(scheduler.queue._dispatched) == 0


BUGS: dict[str, Callable[[Scheduler], None]] = {
    "push": lambda scheduler: raise_once(scheduler.queue, "push", 2),
    "fair-queue": lambda scheduler: raise_once(scheduler.queue.fair, "push", 2),
    "expiry": lambda scheduler: raise_once(scheduler.pool.expiry, "watch", 2),
    "pump": lambda scheduler: raise_once(scheduler.pool, "_dispatch", 1),
    "pop": lambda scheduler: raise_once(scheduler.queue, "pop", 2),
}


@pytest.mark.parametrize("bug", BUGS)
@trio_test
async def test_what_raises_while_a_request_is_queued_leaves_nothing_behind(
    bug: str, autojump_clock: MockClock
) -> None:
    """Neither records without a reader nor credits; the next request is served."""
    scheduler = make_scheduler(LoopbackLauncher(), max_slots=2, lookahead=0)
    async with running(scheduler):
        BUGS[bug](scheduler)
        with pytest.raises(BugError):
            async with scheduler.stream(ask(choices=4)):
                raise AssertionError("accepted all the same")
        await scheduler.wait_idle()
        check_nothing_is_left(scheduler)
        for _ in range(3):
            assert isinstance((await answer(scheduler, ask()))[1], Finished)


@trio_test
async def test_a_request_that_cannot_be_sent_fails_alone(autojump_clock: MockClock) -> None:
    """The engine never gets it and sends no Retired: its credit is returned nevertheless."""
    scheduler = make_scheduler(LoopbackLauncher(), max_slots=1, lookahead=0)
    async with running(scheduler):
        await scheduler.wait_ready()
        life = scheduler.pool["0"].process
        assert life is not None
        real = life.send

        def send(message: ToEngine) -> None:
            if isinstance(message, Submit) and len(message.prompt) > 50:
                raise BugError("too large a frame")
            real(message)

        life.send = send
        finals: list[Finished | Failed] = []

        async def follow(text: str) -> None:
            finals.append((await answer(scheduler, ask(text)))[1])

        async with trio.open_nursery() as nursery:
            for text in ("a", "b" * 100, "c" * 100, "d"):
                nursery.start_soon(follow, text)
        assert sorted(type(final).__name__ for final in finals) == [
            "Failed",
            "Failed",
            "Finished",
            "Finished",
        ]
        check_nothing_is_left(scheduler)


@trio_test
async def test_a_prompt_is_hashed_once_and_off_the_event_loop(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 choices of 100,000 tokens took 121 ms during which no stream got a token."""
    hashed: list[bool] = []
    offloaded = False
    real = prefix_estimate.block_hashes

    async def offload(work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
        nonlocal offloaded
        offloaded = True
        try:
            return work()
        finally:
            offloaded = False

    def block_hashes(prompt: TokenIds, salt: str) -> tuple[int, ...]:
        hashed.append(offloaded)
        return real(prompt, salt)

    monkeypatch.setattr(preparation, "block_hashes", block_hashes)
    assert not hasattr(queue, "block_hashes")
    scheduler = make_scheduler(LoopbackLauncher())
    scheduler.off_loop._offload = offload
    async with running(scheduler), scheduler.stream(ask(max_tokens=1, choices=128)):
        await scheduler.wait_idle()
    assert hashed == [True]
