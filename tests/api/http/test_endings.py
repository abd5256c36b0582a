"""Many clients that leave at one moment end over some turns of the event loop."""

from __future__ import annotations

from collections import Counter

import trio
from trio.testing import MockClock, trio_test

from api.http.endings import AT_ONCE_SECONDS, END_SECONDS, Endings


async def ends_of(number: int) -> list[float]:
    """Return when each of these ends has its turn, all of which come now."""
    endings, times = Endings(), list[float]()

    async def end() -> None:
        await endings.wait()
        times.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(end)
    return times


@trio_test
async def test_few_end_at_once(autojump_clock: MockClock) -> None:
    """Nobody waits, and no slot is free later."""
    started_at = trio.current_time()
    assert set(await ends_of(round(AT_ONCE_SECONDS / END_SECONDS))) == {started_at}


@trio_test
async def test_a_thousand_end_over_half_a_second(autojump_clock: MockClock) -> None:
    """A few a turn, in each of which all else runs."""
    started_at = trio.current_time()
    times = await ends_of(1000)
    together = Counter(times)
    assert max(together.values()) <= AT_ONCE_SECONDS / END_SECONDS + 1
    assert max(times) - started_at <= 1000 * END_SECONDS


@trio_test
async def test_what_was_reserved_passes(autojump_clock: MockClock) -> None:
    """After a pause the next ones end at once again."""
    endings = Endings()
    for _ in range(100):
        await endings.wait()
    await trio.sleep(1)
    now = trio.current_time()
    await endings.wait()
    assert trio.current_time() == now
