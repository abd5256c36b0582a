"""The control socket: one service of a name, questions that cannot be read, and sockets left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.operator.errors import OperatorError
from api.operator.service import run
from api.operator.service.control import AskStatus, Order, Refused, asked, send
from api.operator.service.supervisor import Supervisor
from tests.api.operator.service.processes import OLD, FakeLauncher, upgrade


async def opened(nursery: trio.Nursery, folder: Path) -> Path:
    """A control socket of a supervisor that has started nothing yet."""
    supervisor = Supervisor(FakeLauncher(nursery), lambda state: None)
    listener = await run.control_socket(folder)
    nursery.start_soon(
        trio.serve_listeners, lambda stream: run.answer(supervisor, lambda lines: None, stream), [listener]
    )
    return folder / "control"


@trio_test
async def test_one_service_of_a_name_runs(tmp_path: Path) -> None:
    """A socket that a killed one left is taken over, one that answers is not."""
    left = await run.control_socket(tmp_path / "run")
    await left.aclose()
    async with trio.open_nursery() as nursery:
        await opened(nursery, tmp_path / "run")
        with pytest.raises(OperatorError, match="runs already"):
            await run.control_socket(tmp_path / "run")
        nursery.cancel_scope.cancel()
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


@trio_test
async def test_a_question_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Of another version, too long, or none at all: the next one is answered."""
    async with trio.open_nursery() as nursery:
        control = await opened(nursery, tmp_path)
        for garbage in (b'{"type":"dance"}\n', b"\xff\n"):
            async with await trio.open_unix_socket(control) as stream:
                await stream.send_all(garbage)
                assert b'"type":"refused"' in await stream.receive_some()
        async with await trio.open_unix_socket(control) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(b"x" * 10_000_000)
        async with asked(control, AskStatus()) as replies:
            assert await replies.next() == Refused("the service has not started a process yet")
            assert await replies.next() is None
        for order in Order:
            async with asked(control, upgrade(order)) as replies:
                assert await replies.next() == Refused("the service is starting or stopping")
        nursery.cancel_scope.cancel()


@trio_test
async def test_an_operator_who_leaves_in_mid_upgrade_ends_nothing(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """The new process is gone, the old one serves, and the next question is answered."""
    async with trio.open_nursery() as nursery:
        launcher = FakeLauncher(nursery, {"/new": {"load_seconds": 1e6}})
        supervisor = Supervisor(launcher, lambda state: None)
        ours, theirs = trio.testing.memory_stream_pair()
        said: list[bytes] = []
        nursery.start_soon(supervisor.run, OLD)
        await trio.sleep(2)
        async with trio.open_nursery() as answering:
            answering.start_soon(run.answer, supervisor, said.append, theirs)
            await send(ours, upgrade(ready_seconds=1e9))
            await trio.sleep(5)
            assert [one.status for one in launcher.started] == [None, None]
            await ours.aclose()
        assert [one.status for one in launcher.started] == [None, 0]
        assert b"taken back" in said[-1]
        nursery.cancel_scope.cancel()


@trio_test
async def test_an_operator_who_leaves_in_mid_upgrade_one_at_a_time_is_not_waited_for(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """It goes on without a connection to speak to, and the service's own output has its result."""
    async with trio.open_nursery() as nursery:
        launcher = FakeLauncher(nursery)
        supervisor = Supervisor(launcher, lambda state: None)
        ours, theirs = trio.testing.memory_stream_pair()
        said: list[bytes] = []
        nursery.start_soon(supervisor.run, OLD)
        await trio.sleep(2)
        async with trio.open_nursery() as answering:
            answering.start_soon(run.answer, supervisor, said.append, theirs)
            await send(ours, upgrade(Order.ONE_AT_A_TIME))
            await trio.sleep(1)
            await ours.aclose()
        assert trio.current_time() == 3
        assert b"goes on" in said[-1]
        await trio.sleep(20)
        assert [one.status for one in launcher.started] == [0, None]
        assert b"Upgraded(" in said[-1]
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_service_of_another_version_is_not_believed(tmp_path: Path) -> None:
    async def strange(stream: trio.SocketStream) -> None:
        await stream.send_all(b'{"type":"news"}\n')

    async with trio.open_nursery() as nursery:
        listener = await run.control_socket(tmp_path)
        nursery.start_soon(trio.serve_listeners, strange, [listener])
        async with asked(tmp_path / "control", AskStatus()) as replies:
            with pytest.raises(OperatorError, match="another version"):
                await replies.next()
        nursery.cancel_scope.cancel()


@trio_test
async def test_where_nobody_answers_a_command_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="penstock service install"):
        async with asked(tmp_path / "control", AskStatus()):
            pass


@trio_test
async def test_a_message_is_one_line() -> None:
    first, second = trio.testing.memory_stream_pair()
    await send(first, AskStatus())
    assert await second.receive_some() == b'{"type":"status"}\n'
