"""Real host processes, and what they leave behind when somebody dies: nothing.

Time here is real. Each engine holds a lock while it lives (`tests/scheduler/link/real_engine.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from loadtests.processes import children
from scheduler.cluster import host as host_program
from scheduler.cluster.host import Host
from scheduler.cluster.host_messages import HOST_ROLE
from scheduler.cluster.order import HostOrder
from scheduler.cluster.remote_launcher import RemoteLauncher
from scheduler.cluster.started_host import HostNotStarted, StartedHost, start_host
from scheduler.link.channel import Channel
from scheduler.link.dial import dial
from scheduler.link.listener import Listener
from scheduler.link.messages import ScriptedPlan, StepOutput
from scheduler.link.process import Exit, LaunchFailed
from tests.contracts.journal import request
from tests.fakes.faulty_backend import Faults, in_engine_process
from tests.fakes.local_hosts import LOOPBACK, LocalStarter, OverTcp
from tests.scheduler.link.real_engine import RealEngine, started, until_gone

_SOON_SECONDS = 8.0
"""For what takes milliseconds on an idle machine, and before the next possible explanation."""


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., RealEngine]]:
    made: list[RealEngine] = []

    def make(on_start: str = "", stop_seconds: float = 10.0) -> RealEngine:
        made.append(RealEngine(tmp_path, on_start, stop_seconds, over_tcp=True))
        return made[-1]

    yield make
    for engine in made:
        engine.rescue()


def host_of(engine: RealEngine) -> StartedHost:
    launcher = engine.launcher
    assert isinstance(launcher, OverTcp)
    return launcher.starter.hosts[-1]


def soon(condition: Callable[[], bool], what: str) -> None:
    until = time.perf_counter() + _SOON_SECONDS
    while not condition():
        assert time.perf_counter() < until, what
        time.sleep(0.005)


def test_a_killed_host_process_takes_its_engine_along(make_engine: Callable[..., RealEngine]) -> None:
    """Also from the middle of a step: the front closes the engine's link."""
    engine = make_engine()

    async def session(channel: Channel) -> None:
        await started(channel, ScriptedPlan(step_seconds=30))
        channel.send_nowait(request(1, [1], 5))
        os.kill(host_of(engine).pid, signal.SIGKILL)
        assert await until_gone(channel) == []

    ended = trio.run(engine.run, session)
    assert ended.returncode is None
    soon(lambda: not engine.lives, "the engine outlived its host process")


def test_a_stopped_host_process_disturbs_no_answer(make_engine: Callable[..., RealEngine]) -> None:
    """Tokens do not pass through it. At the end the engine leaves by itself, and is not waited for."""
    engine = make_engine(stop_seconds=0.3)

    async def session(channel: Channel) -> None:
        await started(channel)
        os.kill(host_of(engine).pid, signal.SIGSTOP)
        channel.send_nowait(request(1, [1], 5))
        tokens = 0
        while tokens < 5:
            output = await channel.receive()
            assert isinstance(output, StepOutput)
            tokens += len(output.tokens)
        os.kill(host_of(engine).pid, signal.SIGCONT)

    ended = trio.run(engine.run, session)
    assert str(ended) in ("exited with status 3", "left no exit status")
    soon(lambda: not engine.lives, "the engine outlived its session")


@pytest.mark.parametrize("hung", [False, True], ids=["does not obey", "was declared hung"])
def test_a_stopped_engine_is_killed_from_here(make_engine: Callable[..., RealEngine], hung: bool) -> None:
    """By its host process: after the time to stop, or by SIGABRT, on which it writes its stacks."""
    engine = make_engine(stop_seconds=0.3)

    async def session(channel: Channel) -> None:
        await started(channel)
        os.kill(engine.pid, signal.SIGSTOP)
        soon(lambda: _state(engine.pid).startswith("T"), "the system has not stopped it")
        channel.unresponsive = hung

    ended = trio.run(engine.run, session)
    engine.assert_gone()
    assert ended.returncode == -(signal.SIGABRT if hung else signal.SIGKILL)
    assert any("Thread 0x" in line for line in ended.last_stderr) == hung


_FRONT = """
import os, sys
from pathlib import Path
import trio
from scheduler.link.messages import PROTOCOL_VERSION, Load, ScriptedPlan
from tests.contracts.journal import request
from tests.fakes.local_hosts import LocalStarter, OverTcp

async def session(channel):
    plan = ScriptedPlan(step_seconds=float(sys.argv[1]))
    channel.send_nowait(Load("scripted", "", 4, 512, 8, "auto", plan))
    await channel.receive()
    channel.send_nowait(request(1, [1], 1000000))
    await trio.sleep(0.1)
    print("host", starter.hosts[0].pid, flush=True)
    await trio.sleep_forever()

starter = LocalStarter(Path(sys.argv[2]))
own = {"PYTHONPATH": os.environ["TEST_ENGINE_PATH"], "TEST_ENGINE_FILE": os.environ["TEST_ENGINE_FILE"]}
trio.run(OverTcp(starter, 60, own).run, session)
"""


@pytest.mark.parametrize(
    ("step_seconds", "hang_at_step"), [(0.001, 0), (30.0, 0), (0.0, 1)], ids=["busy", "long step", "hanging"]
)
def test_a_killed_front_leaves_neither_host_process_nor_engine(
    make_engine: Callable[..., RealEngine], tmp_path: Path, step_seconds: float, hang_at_step: int
) -> None:
    engine = make_engine(in_engine_process(Faults(hang_at_step=hang_at_step)))
    root = str(Path(host_program.__file__).parents[2])
    environment = {
        **engine.environment,
        "PYTHONPATH": root,
        "TEST_ENGINE_PATH": engine.environment["PYTHONPATH"],
    }
    with subprocess.Popen(
        [sys.executable, "-c", _FRONT, str(step_seconds), str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
    ) as front:
        try:
            assert front.stdout is not None
            host = next(
                int(line.split()[1]) for line in iter(front.stdout.readline, b"") if line.startswith(b"host ")
            )
            assert engine.lives
        finally:
            front.kill()
        soon(lambda: not engine.lives, "the engine outlived its front")
        soon(lambda: _state(host)[:1] in ("", "Z"), "the host process outlived its front")


def _state(pid: int) -> str:
    """As `ps` has it: T for a stopped process, Z for one that has ended and that nobody has waited for."""
    return _ps("-o", "stat=", "-p", str(pid)).strip()


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout


def test_it_outlives_what_has_started_it(tmp_path: Path) -> None:
    """It is nobody's child, in a session of its own, so that neither signals to its starter's group nor a
    starter that kills its children reach it."""

    async def session(channel: Channel) -> None:
        await started(channel)
        [host] = starter.hosts
        assert os.getsid(host.pid) != os.getsid(0)
        assert int(_ps("-o", "ppid=", "-p", str(host.pid))) != os.getpid()
        assert host.lives

    starter = LocalStarter(tmp_path)
    trio.run(OverTcp(starter).run, session)
    assert not starter.hosts[0].lives


def test_no_process_list_shows_a_token(tmp_path: Path) -> None:
    """Neither arguments nor environments, which other users may read."""
    orders: list[HostOrder] = []

    class Noting(LocalStarter):
        async def start(self, order: HostOrder) -> None:
            orders.append(order)
            await super().start(order)

    async def session(channel: Channel) -> None:
        await started(channel)
        [order], [host] = orders, starter.hosts
        [engine] = children(host.pid)
        for process in (host.pid, engine):
            shown = _ps("eww", str(process))
            assert "XDG_CACHE_HOME=" in shown, "environments are shown"
            assert order.host_token not in shown
            assert order.engine_token not in shown

    starter = Noting(tmp_path)
    trio.run(OverTcp(starter).run, session)


def test_an_engine_gets_no_option_of_the_server_and_nothing_of_ray(tmp_path: Path) -> None:
    """They may be secrets. What the order says comes first."""
    script = tmp_path / "sitecustomize.py"
    script.write_text(
        "import os, sys\n"
        "if 'scheduler.engine' in sys.orig_argv:\n"
        "    of = {n: v for n, v in os.environ.items() if n.startswith(('RAY', 'PENSTOCK', 'OF'))}\n"
        "    print(of, file=sys.stderr)\n"
    )
    root = str(Path(host_program.__file__).parents[2])
    own = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}", "OF_ORDER": "1", "OF_BOTH": "order"}

    async def session(channel: Channel) -> None:
        await started(channel)

    starter = LocalStarter(tmp_path)
    starter.environment |= {
        "RAY_AUTH_TOKEN": "x",
        "PENSTOCK_API_KEY": "y",
        "OF_BOTH": "machine",
        "OF_MACHINE": "2",
    }
    ended = trio.run(OverTcp(starter, environment=own).run, session)
    [line] = ended.last_stderr
    assert eval(line) == {"OF_ORDER": "1", "OF_BOTH": "order", "OF_MACHINE": "2"}


def test_one_device_has_one_engine(tmp_path: Path) -> None:
    """A second one waits until the first has ended; on another device it need not wait."""
    order: list[str] = []

    async def first(channel: Channel) -> None:
        await started(channel)
        order.append("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(OverTcp(LocalStarter(tmp_path, "1")).run, beside)
            while "beside" not in order:  # noqa: ASYNC110 (the other's session)
                await trio.sleep(0.01)
            order.append("first ends")

    async def beside(channel: Channel) -> None:
        await started(channel)
        order.append("beside")

    async def second(channel: Channel) -> None:
        await started(channel)
        order.append("second")

    async def later() -> None:
        while not order:  # noqa: ASYNC110 (the other's session)
            await trio.sleep(0.01)
        await OverTcp(LocalStarter(tmp_path)).run(second)

    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(OverTcp(LocalStarter(tmp_path)).run, first)
                nursery.start_soon(later)

    trio.run(main)
    assert order == ["first", "beside", "first ends", "second"]


class InThread:
    """A `HostStarter` whose host process is a thread of this one, with its constants."""

    def __init__(self, caches: Path) -> None:
        self._caches = caches
        self.threads: list[threading.Thread] = []

    async def start(self, order: HostOrder) -> None:
        def connect() -> socket.socket:
            return dial(order.addresses, order.port, order.host_token, HOST_ROLE, host="mac-2", seconds=5)

        control = await trio.to_thread.run_sync(connect)
        environment = {**os.environ, "XDG_CACHE_HOME": str(self._caches)}

        def live() -> None:
            with control:
                Host(order, control, "mac-2", environment).run()

        self.threads.append(threading.Thread(target=live))
        self.threads[-1].start()

    def describe(self) -> str:
        return "mac-2"


async def _run_in_thread(
    tmp_path: Path, session: Callable[[Channel], object]
) -> tuple[Exit | Exception, InThread]:
    listener, starter = Listener(), InThread(tmp_path)
    ended: Exit | Exception
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(listener.serve, LOOPBACK, 0)
        launcher = RemoteLauncher(starter, listener, [LOOPBACK], port, 5.0)
        try:
            ended = await launcher.run(session)  # type: ignore[arg-type]
        except LaunchFailed as error:
            ended = error
        nursery.cancel_scope.cancel()
    for thread in starter.threads:
        await trio.to_thread.run_sync(thread.join, _SOON_SECONDS)
        assert not thread.is_alive(), "the host process did not end"
    return ended, starter


def test_a_device_in_use_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the wait is over; the launch may be tried again."""
    monkeypatch.setattr(host_program, "DEVICE_SECONDS", 0.2)
    refusals: list[Exit | Exception] = []

    async def first(channel: Channel) -> None:
        await started(channel)
        refusals.append((await _run_in_thread(tmp_path, first))[0])

    ended, _ = trio.run(_run_in_thread, tmp_path, first)
    assert ended == Exit(3)
    [refusal] = refusals
    assert isinstance(refusal, LaunchFailed)
    assert f"device '0' of mac-2 is in use by process {os.getpid()}, an engine of the server at" in str(
        refusal
    )


def test_nobody_waits_for_a_device_that_is_wanted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front has cancelled the launch: the host process ends before its turn comes."""
    monkeypatch.setattr(host_program, "DEVICE_SECONDS", 3600.0)

    async def first(channel: Channel) -> None:
        await started(channel)
        starter = InThread(tmp_path)
        listener = Listener()
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(listener.serve, LOOPBACK, 0)
            with trio.move_on_after(1.0):
                await RemoteLauncher(starter, listener, [LOOPBACK], port, 5.0).run(first)
            nursery.cancel_scope.cancel()
        [thread] = starter.threads
        await trio.to_thread.run_sync(thread.join, _SOON_SECONDS)
        assert not thread.is_alive()

    trio.run(_run_in_thread, tmp_path, first)


@pytest.mark.parametrize("broken", ["no such front", "no such Python"])
def test_a_host_process_that_cannot_start_says_why(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves no descriptor."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        order = HostOrder((LOOPBACK,), taken.getsockname()[1], "00" * 32, "11" * 32)
        if broken == "no such Python":
            monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        before = len(os.listdir("/dev/fd"))
        expected = {"no such front": "no connection from .*refused", "no such Python": "No such file"}
        with pytest.raises(HostNotStarted, match=expected[broken]):
            start_host(order)
        assert len(os.listdir("/dev/fd")) == before
