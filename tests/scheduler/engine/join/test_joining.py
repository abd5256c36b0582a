"""Real processes that join: who waits for the device, what an operator reads, and that nothing is left.

What holds for every engine process is in `tests/scheduler/processes/test_process.py`, which runs these, too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from scheduler.cluster.joined import JoinedLauncher
from scheduler.engine.join.joining import GAVE_UP, REFUSED, TOKEN_VARIABLE, lock_device
from scheduler.processes.channel import Channel
from scheduler.processes.listener import Dialed, Listener
from scheduler.shared.framing import encode
from scheduler.shared.hello import HelloReply, new_token
from scheduler.shared.messages import PROTOCOL_VERSION, Fault, FromEngine, Load, ScriptedPlan
from tests.contracts.journal import request
from tests.fakes.local_machine import LOOPBACK, LocalMachine, joining
from tests.scheduler.processes.real_engine import started, until_gone

_SECONDS = 60
TOKEN = new_token()


def ended(port: int, caches: Path, *more: str, token: str = TOKEN) -> tuple[int, str]:
    """Return the exit status of an engine that cannot join, and what it printed."""
    command, environment = joining(port, token, caches, "0")
    done = subprocess.run(
        [*command, *more], env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    return done.returncode, done.stdout


@asynccontextmanager
async def one_that_joins(folder: Path, launcher: JoinedLauncher, *path: str) -> AsyncIterator[trio.Process]:
    """What it prints and its errors are one stream, its standard output."""

    def take(dialed: Dialed) -> None:
        launcher.offer(dialed)

    with trio.fail_after(_SECONDS):
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(Listener(TOKEN, take).serve, LOOPBACK, 0)
            command, environment = joining(port, TOKEN, folder, "0")
            found = os.pathsep.join(filter(None, [*path, environment.get("PYTHONPATH")]))
            yield await trio.lowlevel.open_process(
                command,
                env=environment | {"PYTHONPATH": found},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            if (left := launcher.withdraw()) is not None:
                await left.stream.aclose()
            nursery.cancel_scope.cancel()


async def said_by(process: trio.Process) -> str:
    assert process.stdout is not None
    return b"".join([piece async for piece in process.stdout]).decode()


def test_a_server_that_cannot_be_reached_is_named_when_it_gives_up(tmp_path: Path) -> None:
    """By default it does not: servers and machines start in any order."""
    with socket.socket() as reserved:
        reserved.bind((LOOPBACK, 0))
        port = reserved.getsockname()[1]
        status, said = ended(port, tmp_path, "--give-up-seconds", "0.1")
    assert status == 1
    assert said.splitlines()[-1].startswith(f"{GAVE_UP}: no connection from ")
    assert f"to the server's port {port}" in said


def test_a_wrong_token_is_refused_by_the_server_and_tried_no_more(tmp_path: Path) -> None:
    async def main() -> tuple[int, str]:
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(Listener(TOKEN, _nobody).serve, LOOPBACK, 0)
            found = await trio.to_thread.run_sync(lambda: ended(port, tmp_path, token=new_token()))
            nursery.cancel_scope.cancel()
        return found

    status, said = trio.run(main)
    assert status == 1
    assert said.splitlines()[-1].startswith(f"{REFUSED} by the server at {LOOPBACK}:")


@pytest.mark.parametrize(
    ("arguments", "token", "why"),
    [
        (("--join", "nowhere"), TOKEN, "--join takes HOST:PORT, not 'nowhere'"),
        ((), "", TOKEN_VARIABLE),
    ],
    ids=["server", "token"],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], token: str, why: str, tmp_path: Path) -> None:
    status, said = ended(9, tmp_path, *arguments, token=token)
    assert status == 1
    assert why in said


def test_a_second_engine_of_a_device_waits_for_it_and_says_who_has_it(tmp_path: Path) -> None:
    """It joins when the first one has ended. So an actor that Ray makes again leaves its predecessor's engine
    alone."""
    arrived: list[Dialed] = []

    async def main() -> None:
        with trio.fail_after(_SECONDS):
            async with trio.open_nursery() as nursery:
                port: int = await nursery.start(Listener(TOKEN, arrived.append).serve, LOOPBACK, 0)
                held = lock_device(
                    "0", socket.gethostname(), tmp_path / "penstock", "process 7, an engine", 0
                )
                machine = LocalMachine(tmp_path, port, TOKEN)
                nursery.start_soon(machine.run)
                await trio.sleep(2)
                assert arrived == []
                assert len(machine.pids) == 1
                os.close(held)
                while not arrived:  # noqa: ASYNC110 (another process)
                    await trio.sleep(0.01)
                assert arrived[0].host == "machine-0"
                await arrived[0].stream.aclose()
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_thread_that_keeps_the_interpreter_does_not_keep_the_device(tmp_path: Path) -> None:
    """The one that reads the link cannot run then: a timer ends the process, with all stacks, while the link
    is open."""
    (tmp_path / "sitecustomize.py").write_text("""
import ctypes, faulthandler, threading, time
_later = faulthandler.dump_traceback_later
faulthandler.dump_traceback_later = lambda seconds, **kw: _later(min(seconds, 3.0), **kw)
def _hang():
    time.sleep(2)
    ctypes.PyDLL(None).sleep(1000)
threading.Thread(target=_hang, name="keeps it", daemon=True).start()
""")

    async def main() -> None:
        async with one_that_joins(tmp_path, JoinedLauncher(), str(tmp_path)) as process:
            said = await said_by(process)
            assert "Timeout" in said
            assert "Thread 0x" in said
            assert await process.wait() == 1

    trio.run(main)


def test_the_commands_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    """On a terminal, in the middle of a step, without a traceback: the server's requests go on elsewhere."""

    async def main() -> None:
        launcher = JoinedLauncher()
        async with one_that_joins(tmp_path, launcher) as process:

            async def session(channel: Channel) -> None:
                await started(channel, ScriptedPlan(step_seconds=30))
                channel.send_nowait(request(1, [1], 5))
                await trio.sleep(0.2)
                process.send_signal(signal.SIGINT)
                await process.wait()

            await launcher.run(session)
            assert "Traceback" not in await said_by(process)
            assert process.returncode == -signal.SIGINT

    trio.run(main)


def test_a_model_that_cannot_be_loaded_is_named_on_its_own_machine(tmp_path: Path) -> None:
    """As the server reads it: an operator who installs an engine on a machine looks at that one's
    terminal."""
    faults: list[FromEngine] = []

    async def session(channel: Channel) -> None:
        channel.send_nowait(Load("mlx", str(tmp_path / "absent")))
        faults.extend(await until_gone(channel))

    async def main() -> None:
        launcher = JoinedLauncher()
        async with one_that_joins(tmp_path, launcher) as process:
            await launcher.run(session)
            fault = faults[-1]
            assert isinstance(fault, Fault)
            assert "absent" in fault.error
            assert fault.error in (await said_by(process)).splitlines()
            assert await process.wait() == 1

    trio.run(main)


def test_what_started_it_sees_its_end_by_its_standard_output(tmp_path: Path) -> None:
    """As Ray's actor does, which is not its parent: the pipe ends with the process, not before."""
    sockets: list[socket.socket] = []
    with socket.create_server((LOOPBACK, 0)) as server:
        command, environment = joining(server.getsockname()[1], TOKEN, tmp_path, "0")
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        accept = threading.Thread(target=lambda: sockets.append(_let_in(server)))
        accept.start()
        accept.join(_SECONDS)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        assert process.stdout.read().startswith(b"joined the server at ")
        assert process.stdout.read() is None  # Open, and nothing more in it.
        sockets[0].close()
        assert process.wait(_SECONDS) == 3
        assert process.stdout.read() == b""
        process.stdout.close()


def _let_in(server: socket.socket) -> socket.socket:
    link, _ = server.accept()
    link.recv(2000)
    link.sendall(encode(HelloReply(PROTOCOL_VERSION)))
    # Until it has redirected its output, for which nothing is sent: its reader thread waits by then.
    threading.Event().wait(1.0)
    return link


def _nobody(dialed: Dialed) -> None:
    raise AssertionError("nobody is let in")
