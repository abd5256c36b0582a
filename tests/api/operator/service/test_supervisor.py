"""One process takes the place of another: who serves in every moment, and what is left when it fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.operator.service.control import AskUpgrade, Order, Refused, RolledBack, Status, Upgraded
from api.operator.service.supervisor import Supervisor
from tests.api.operator.service.processes import OLD, FakeLauncher, upgrade


@dataclass
class Scene:
    launcher: FakeLauncher
    supervisor: Supervisor
    said: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ended: trio.Event = field(default_factory=trio.Event)

    async def replace(self, ask: AskUpgrade) -> Upgraded | RolledBack | Refused:
        async def say(text: str) -> None:
            self.said.append(text)

        return await self.supervisor.replace(ask, say)

    def serving(self) -> str:
        status = self.supervisor.status()
        assert isinstance(status, Status)
        return status.serving.program[0]

    @property
    def log(self) -> list[str]:
        return self.launcher.log


@asynccontextmanager
async def scene(
    missing: frozenset[str] = frozenset(), **traits: dict[str, float | int]
) -> AsyncIterator[Scene]:
    """A supervisor whose first process is ready. `traits`: of the processes of a program."""
    async with trio.open_nursery() as nursery:
        launcher = FakeLauncher(nursery, {f"/{name}": value for name, value in traits.items()}, missing)
        supervisor = Supervisor(launcher, lambda state: None)
        found = Scene(launcher, supervisor)

        async def run() -> None:
            found.statuses.append(await supervisor.run(OLD))
            found.ended.set()

        nursery.start_soon(run)
        await trio.sleep(2)
        yield found
        nursery.cancel_scope.cancel()


@trio_test
async def test_the_old_one_retires_when_the_new_one_is_ready(autojump_clock: trio.testing.MockClock) -> None:
    """Never before: in every moment one of them accepts. Then its streams go on to their end."""
    async with scene() as found:
        assert isinstance(await found.replace(upgrade()), Upgraded)
        assert found.serving() == "/new"
        await trio.sleep(20)
        assert found.log[2:] == ["2 /new starts", "3 /new is ready", "3 /old retires", "13 /old ends 0"]
        assert not found.ended.is_set()


@trio_test
async def test_a_new_one_that_ends_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """The reason has its status and its last words; the old one was never touched."""
    async with scene(new={"fails_with": 2}) as found:
        assert await found.replace(upgrade()) == RolledBack(
            "the new version ended with status 2: its last words"
        )
        assert found.serving() == "/old"
        assert not [line for line in found.log if "/old retires" in line or "/old stops" in line]


@trio_test
async def test_a_new_one_that_is_late_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    """Otherwise two models would stay in memory."""
    async with scene(new={"load_seconds": 1000}) as found:
        result = await found.replace(upgrade(ready_seconds=30))
        assert isinstance(result, RolledBack)
        assert "not ready after 30 s" in result.reason
        assert found.log[-2:] == ["32 /new stops", "32 /new ends 0"]
        assert found.serving() == "/old"


@trio_test
async def test_a_program_that_is_not_there_is_rolled_back(autojump_clock: trio.testing.MockClock) -> None:
    async with scene(frozenset({"/new"})) as found:
        result = await found.replace(upgrade())
        assert result == RolledBack("/new cannot be started: No such file or directory")
        assert found.serving() == "/old"


@trio_test
async def test_an_operator_who_leaves_takes_the_upgrade_back(autojump_clock: trio.testing.MockClock) -> None:
    """Ctrl-C before the new one serves leaves no process behind."""
    async with scene(new={"load_seconds": 50}) as found:
        with trio.move_on_after(10):
            await found.replace(upgrade())
        assert found.log[-1] == "12 /new ends 0"
        assert isinstance(await found.replace(upgrade()), Upgraded)


@trio_test
async def test_two_upgrades_at_once_are_not_begun(autojump_clock: trio.testing.MockClock) -> None:
    async with scene(new={"load_seconds": 50}) as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.replace, upgrade())
        await trio.sleep(1)
        assert await found.replace(upgrade()) == Refused("another upgrade is under way")


@trio_test
async def test_streams_have_a_time(autojump_clock: trio.testing.MockClock) -> None:
    """After it the old process drains as after SIGTERM."""
    async with scene(old={"streams_seconds": 500}) as found:
        await found.replace(upgrade(streams_seconds=60))
        await trio.sleep(100)
        assert found.log[-2:] == ["63 /old stops", "63 /old ends 0"]
        assert found.serving() == "/new"


@trio_test
async def test_one_at_a_time_never_holds_two_models(autojump_clock: trio.testing.MockClock) -> None:
    """The new one starts when the old one has ended, with its streams."""
    async with scene() as found:
        assert isinstance(await found.replace(upgrade(Order.ONE_AT_A_TIME)), Upgraded)
        assert found.log[2:] == ["2 /old retires", "12 /old ends 0", "12 /new starts", "13 /new is ready"]
        await trio.sleep(1)
        assert not found.ended.is_set()


@trio_test
async def test_one_at_a_time_goes_back_by_starting_the_old_version(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Connections wait meanwhile."""
    async with scene(new={"fails_with": 1}) as found:
        assert isinstance(await found.replace(upgrade(Order.ONE_AT_A_TIME)), RolledBack)
        assert found.log[-4:] == ["13 /new ends 1", "13 /new stops", "13 /old starts", "14 /old is ready"]
        assert found.serving() == "/old"
        assert not found.ended.is_set()


@trio_test
async def test_an_operator_who_leaves_does_not_stop_one_at_a_time_half_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It goes on without them, back to the old version too, and says at last what came of it."""
    async with scene(new={"fails_with": 1}) as found:
        with trio.move_on_after(3):
            await found.replace(upgrade(Order.ONE_AT_A_TIME))
        assert trio.current_time() == 5
        assert await found.replace(upgrade()) == Refused("another upgrade is under way")
        await trio.sleep(10)
        assert found.log[-4:] == ["13 /new ends 1", "13 /new stops", "13 /old starts", "14 /old is ready"]
        assert found.serving() == "/old"
        assert "RolledBack(reason='the new version ended with status 1" in found.said[-1]
        assert not found.ended.is_set()
        assert isinstance(await found.replace(upgrade(Order.ONE_AT_A_TIME)), RolledBack)


@trio_test
async def test_a_service_that_is_ended_waits_for_no_upgrade(autojump_clock: trio.testing.MockClock) -> None:
    """Neither for the old one's streams, nor for an old version that never gets ready again."""
    async with scene(old={"streams_seconds": 5000}) as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.replace, upgrade(Order.ONE_AT_A_TIME, streams_seconds=9000))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    async with scene(new={"fails_with": 1}) as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.replace, upgrade(Order.ONE_AT_A_TIME))
        found.launcher.traits["/old"] = {"load_seconds": 5000}
        await trio.sleep(20)
        assert found.log[-1].endswith("/old starts")
        nursery.cancel_scope.cancel()
    assert trio.current_time() < 30


@trio_test
async def test_a_bug_in_an_upgrade_is_its_askers_and_not_the_services(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The one who asked gets the exception; the old process serves, and the next upgrade is made."""

    async def broken(text: str) -> None:
        raise ValueError("no such text")

    for order in Order:
        async with scene() as found:
            with pytest.raises(ValueError, match="no such text"):
                await found.supervisor.replace(upgrade(order), broken)
            assert isinstance(await found.replace(upgrade()), Upgraded)


@trio_test
async def test_a_bug_where_nobody_waits_for_the_upgrade_is_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A service that has no process after it has failed, so that its manager starts it again."""
    async with scene() as found:
        with trio.move_on_after(3):
            await found.replace(upgrade(Order.ONE_AT_A_TIME))
        found.launcher.broken = True
        await found.ended.wait()
        assert "ValueError" in found.said[-1]
        assert found.statuses == [1]


@trio_test
async def test_with_nothing_to_go_back_to_the_service_fails(autojump_clock: trio.testing.MockClock) -> None:
    """The old version was removed meanwhile: status 0 would keep the manager from trying again."""
    async with scene(new={"fails_with": 1}) as found:
        found.launcher.missing = frozenset({"/old"})
        result = await found.replace(upgrade(Order.ONE_AT_A_TIME))
        assert isinstance(result, RolledBack)
        assert "does not start again either" in result.reason
        await found.ended.wait()
        assert found.statuses == [1]


@trio_test
async def test_a_stop_while_the_old_one_ends_its_streams_starts_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scene(old={"streams_seconds": 500}) as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.replace, upgrade(Order.ONE_AT_A_TIME))
        await trio.sleep(1)
        found.supervisor.stop()
        await found.ended.wait()
        assert len(found.launcher.started) == 1


@trio_test
async def test_the_service_ends_with_the_process_that_serves(autojump_clock: trio.testing.MockClock) -> None:
    """Its status is the service's: the manager decides about a restart."""
    async with scene() as found:
        found.launcher.started[0].end(3)
        await found.ended.wait()
        assert found.statuses == [3]


@trio_test
async def test_a_death_in_mid_upgrade_is_mended_by_it(autojump_clock: trio.testing.MockClock) -> None:
    """The socket stays open: who connects meanwhile is served by the new process."""
    async with scene(new={"load_seconds": 50}) as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.replace, upgrade())
        await trio.sleep(1)
        found.launcher.started[0].end(9)
        await trio.sleep(100)
        assert found.serving() == "/new"
        assert not found.ended.is_set()


@trio_test
async def test_the_service_waits_for_streams_of_an_old_process(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also when the new one dies before they have ended."""
    async with scene() as found:
        await found.replace(upgrade())
        found.launcher.started[1].end(9)
        await found.ended.wait()
        assert trio.current_time() == 13
        assert found.statuses == [9]


@trio_test
async def test_a_service_that_waits_only_for_old_streams_is_not_upgraded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It ends when they have: a new process would be cut."""
    async with scene(old={"streams_seconds": 1}, new={"streams_seconds": 500}) as found:
        await found.replace(upgrade())
        await found.replace(upgrade())
        await trio.sleep(1)
        found.launcher.started[2].end(9)
        await trio.sleep(1)
        for order in Order:
            assert isinstance(await found.replace(upgrade(order)), Refused)
        await found.ended.wait()
        assert (trio.current_time(), found.statuses) == (504, [9])
        for order in Order:
            assert isinstance(await found.replace(upgrade(order)), Refused)
        assert len(found.launcher.started) == 3


@trio_test
async def test_a_stop_drains_all_and_ends_a_new_one(autojump_clock: trio.testing.MockClock) -> None:
    """SIGTERM in mid-upgrade: nobody waits for a model that is no longer wanted."""
    async with scene(new={"load_seconds": 50}) as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.replace, upgrade())
        await trio.sleep(1)
        found.supervisor.stop()
        await found.ended.wait()
        assert trio.current_time() == 3
        assert {"3 /new ends 137", "3 /old ends 0"} <= set(found.log)
        assert isinstance(await found.replace(upgrade()), Refused)


@trio_test
async def test_the_new_one_has_the_old_ones_arguments_unless_given(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scene() as found:
        await found.replace(AskUpgrade(None, ("--port", "1", "--max-slots", "4"), Order.BESIDE, 10, 10))
        await found.replace(upgrade())
        commands = [(one.command.program, one.command.arguments) for one in found.launcher.started[1:]]
        given = ("--port", "1", "--max-slots", "4")
        assert commands == [(("/old",), given), (("/new",), given)]
