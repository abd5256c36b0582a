"""Inspections and commands: each caller hears, from the engine or of its end."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.errors import Unavailable
from scheduler.processes.channel import Channel
from scheduler.processes.inspections import Inspections
from scheduler.shared.messages import Cancel, Inspection, ToEngine


@trio_test
async def test_a_caller_has_its_own_answer_and_none_waits_for_a_silent_or_dead_engine(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After 30 seconds, or at the engine's end."""
    asked: list[ToEngine] = []
    pending = Inspections(asked.append)
    found: dict[str, float] = {}

    async def inspect(name: str) -> None:
        try:
            found[name] = (await pending.inspect(name == "clear", 0, 0)).freed_bytes
        except Unavailable:
            found[name] = trio.current_time()

    async with trio.open_nursery() as nursery:
        for name in ("view", "clear", "silent"):
            nursery.start_soon(inspect, name)
            await trio.testing.wait_all_tasks_blocked()
        for number in (2, 1, 9):
            pending.answered(Inspection(number, number, None))
    assert found == {"view": 1, "clear": 2, "silent": 30.0}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inspect, "late")
        await trio.testing.wait_all_tasks_blocked()
        pending.close()
    with pytest.raises(Unavailable):
        await pending.inspect(False, 0, 0)
    assert found["late"] == 30.0
    assert len(asked) == 4


@trio_test
async def test_a_command_to_an_engine_that_is_gone_goes_nowhere() -> None:
    """Who cancels a request at that moment gets no exception, and the writer ends."""
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.aclose()
    channel = Channel(ours)
    channel.send_nowait(Cancel(1))
    await channel.write_forever()
