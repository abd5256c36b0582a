"""Whatever clients, engines and operators do, in any order: each client has its one final event, with the
right answer, when the engines are healthy again, and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest.mock import patch

import pytest
import trio
from hypothesis import given, settings
from trio.testing import MockClock

from scheduler.fleet.model import RETRY_SECONDS
from tests.examples import examples
from tests.scheduler.service_machine.operations import (
    Operation,
    operate,
    operations,
    rest,
    setups,
    with_troubled_starts,
)
from tests.scheduler.service_machine.rules import check, nothing_is_left
from tests.scheduler.service_machine.world import Setup, World

MOST_SECONDS = 700
"""Each waits for less until healthy engines have answered it."""


async def _heal(world: World) -> None:
    """All engines are healthy from now on, and nobody leaves any more: wait until all are answered."""
    for client in world.clients:
        client.patience = None
    for second in range(MOST_SECONDS):
        if all(client.is_done for client in world.clients) and not world.fleet.busy:
            return
        for process in world.processes:
            frames = (
                process.step(random.Random(second), healthy=True) if process.ready else [process.report()]
            )
            process.ready = True
            await process.send(*frames)
        await rest()
        check(world)
        await trio.sleep(1.0)
        await rest()
    waiting = [record for client in world.clients if not client.is_done for record in client.records]
    states = [(record.request.public_id, record.state.name) for record in waiting]
    raise AssertionError(f"these wait for ever: {states}, of {[model.condition for model in world.fleet]}")


async def _live(world: World, todo: Sequence[Operation], nursery: trio.Nursery) -> None:
    await rest()
    for operation in todo:
        if world.over is None:
            await operate(world, nursery, operation)
        await rest()
        check(world)
    await _heal(world)
    # The last failed load is forgiven, and who comes then waits as little.
    await trio.sleep(RETRY_SECONDS)
    for seed in range(2 * world.setup.models if world.over is None else 0):
        await operate(world, nursery, Operation("ask", seed))
    await _heal(world)
    await rest()
    check(world)
    assert all(map(nothing_is_left, world.schedulers))
    assert not any(record.unread for client in world.clients for record in client.records)
    if world.over is None:
        world.fleet.start_drain()
        with trio.fail_after(100):
            await world.fleet.wait_idle()


async def _hold(setup: Setup, todo: Sequence[Operation]) -> None:
    world, failure = World(setup), None
    with world.recorded():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.serve)
            try:
                await _live(world, todo, nursery)
            except AssertionError as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _holds(setup: Setup, todo: Sequence[Operation]) -> None:
    """Run an example, with the same order of tasks each time."""
    with (
        patch("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True),
        patch("trio._core._run._r", random.Random(0)),
    ):
        trio.run(_hold, setup, todo, clock=MockClock(autojump_threshold=0))


@settings(max_examples=examples(40), deadline=None)
@given(setup=setups, todo=operations)
def test_everybody_is_answered_once_and_nothing_is_left(setup: Setup, todo: list[Operation]) -> None:
    _holds(setup, todo)


@settings(max_examples=examples(40), deadline=None)
@given(setup=setups, todo=with_troubled_starts)
def test_so_it_is_where_starts_fail(setup: Setup, todo: list[Operation]) -> None:
    _holds(setup, todo)


@pytest.mark.long
@settings(max_examples=examples(600), deadline=None)
@given(setup=setups, todo=operations | with_troubled_starts)
def test_so_it_is_in_many_orders(setup: Setup, todo: list[Operation]) -> None:
    _holds(setup, todo)
