"""Real engine processes: how they start, how their end is detected, and that none is left behind.

Time here is real: the tests are of the system's behaviour.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

import scheduler
from scheduler.processes.channel import Channel
from scheduler.processes.process import LaunchFailed
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    Alive,
    Begun,
    Pulse,
    ScriptedPlan,
)
from tests.contracts.journal import request
from tests.fakes.faulty_backend import Faults, in_engine_process
from tests.scheduler.processes.real_engine import RealEngine, load, started, until_gone

_SOON_SECONDS = 8.0
"""For what takes milliseconds on an idle machine, and well before the next possible explanation: an engine
that is killed after its 10 seconds, a step of 30."""

_LAST_WORDS = """
import os, signal, sys, threading, time
def _speak():
    while sys.stdout is not sys.stderr or not os.path.sameopenfile(1, 2):
        time.sleep(0.01)
    print("a stray print", flush=True)
    os.write(1, b"a stray write\\n")
    os.write(2, b"".join(b"line %d\\n" % n for n in range(500)) + b"the very last words")
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=_speak, daemon=True).start()
"""


def test_a_working_folder_with_packages_of_our_names_changes_nothing(
    engine: RealEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an agent's project may have: `-m` alone would run those."""
    (tmp_path / "project/scheduler").mkdir(parents=True)
    (tmp_path / "project/scheduler/__init__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path / "project")

    async def session(channel: Channel) -> None:
        ready = await started(channel, ScriptedPlan(vocabulary=777))
        assert (ready.version, ready.device, ready.vocabulary) == (PROTOCOL_VERSION, "scripted", 777)

    trio.run(engine.run, session)
    engine.assert_gone()


def test_a_killed_engine_is_seen_at_once(engine: RealEngine) -> None:
    """SIGKILL, also in the middle of a step: the session gets EngineGone, the exit names the signal."""
    seen_after: list[float] = []

    async def session(channel: Channel) -> None:
        await started(channel, ScriptedPlan(step_seconds=30))
        channel.send_nowait(request(1, [1], 5))
        os.kill(engine.pid, signal.SIGKILL)
        killed_at = time.perf_counter()
        assert await until_gone(channel) == []
        seen_after.append(time.perf_counter() - killed_at)

    ended = trio.run(engine.run, session)
    assert ended.returncode == -signal.SIGKILL
    assert str(ended) == "was killed by SIGKILL"
    assert seen_after[0] < _SOON_SECONDS
    engine.assert_gone()


@pytest.mark.parametrize("way", ["returns", "raises", "is cancelled"])
def test_the_engine_ends_with_its_session(engine: RealEngine, way: str) -> None:
    """However the session ends, and in the middle of a step: the engine is gone when `run` returns, long
    before it would be killed; an error of the session reaches the caller."""
    ended_after: list[float] = []

    async def session(channel: Channel) -> None:
        await started(channel, ScriptedPlan(step_seconds=30))
        channel.send_nowait(request(1, [1], 5))
        await trio.sleep(0.1)
        assert engine.lives
        ended_after.append(time.perf_counter())
        if way == "raises":
            raise ValueError("the session's own")
        if way == "is cancelled":
            scope.cancel()
            await trio.sleep_forever()

    scope = trio.CancelScope()

    async def main() -> None:
        with scope:
            await engine.run(session)

    if way == "raises":
        with pytest.RaisesGroup(
            pytest.RaisesExc(ValueError, match="the session's own"), flatten_subgroups=True
        ):
            trio.run(main)
    else:
        trio.run(main)
    assert time.perf_counter() - ended_after[0] < _SOON_SECONDS
    engine.assert_gone()
    assert scope.cancelled_caught == (way == "is cancelled")
    if way == "returns":
        assert engine.exit is not None
        assert engine.exit.returncode == 3, "an engine that obeys the end of the link leaves with status 3"


def test_a_session_cancelled_while_the_engine_starts_leaves_nothing(child: RealEngine) -> None:
    """The start always has an owner: cancelled at any of these moments, the engine is gone, and no socket is
    left open (a ResourceWarning would fail this test)."""
    for seconds in (0.0, 0.001, 0.01, 0.03, 0.1):

        async def session(channel: Channel) -> None:
            await started(channel)
            await trio.sleep_forever()

        async def main(seconds: float = seconds) -> None:
            with trio.move_on_after(seconds):
                await child.launcher.run(session)

        trio.run(main)
        if child.started:
            child.assert_gone()


def test_an_engine_reports_what_it_does_and_its_processor_time_in_the_middle_of_a_step(
    make_engine: Callable[..., RealEngine],
) -> None:
    """The step hangs: it was reported before, and the thread that reads the link still answers."""

    async def session(channel: Channel) -> None:
        await started(channel)
        channel.send_nowait(request(1, [1, 2], 9))
        assert await channel.receive() == Begun("reading", (1,))
        assert await channel.receive() == Begun("prefill", (1,), 2, 1)
        spent = []
        for _ in range(2):
            channel.send_nowait(Pulse())
            answer = await channel.receive()
            assert isinstance(answer, Alive)
            spent.append(answer.cpu_seconds)
        assert 0 < spent[0] <= spent[1] < spent[0] + 1

    engine = make_engine(in_engine_process(Faults(hang_at_step=1)))
    trio.run(engine.run, session)
    engine.assert_gone()


def test_an_engine_that_does_not_obey_is_killed_after_stop_seconds(
    make_child: Callable[..., RealEngine],
) -> None:
    """An engine stopped by a signal cannot notice that its link is closed: it gets `stop_seconds`, then it is
    killed and reaped."""
    engine = make_child(stop_seconds=0.3)
    stopped_at: list[float] = []

    async def session(channel: Channel) -> None:
        await started(channel)
        os.kill(engine.pid, signal.SIGSTOP)
        _, status = os.waitpid(engine.pid, os.WUNTRACED)  # noqa: ASYNC222 - a matter of microseconds
        assert os.WIFSTOPPED(status)
        stopped_at.append(time.perf_counter())

    ended = trio.run(engine.run, session)
    assert ended.returncode == -signal.SIGKILL
    assert 0.3 <= time.perf_counter() - stopped_at[0] < _SOON_SECONDS
    engine.assert_gone()


def test_all_that_an_engine_writes_is_logged_and_its_last_words_are_kept(
    make_engine: Callable[..., RealEngine], capfd: pytest.CaptureFixture[str]
) -> None:
    """A library's print and a C library's write go to its stderr, which our log gets line by line; our own
    standard output stays ours. The last four hundred lines before a death are kept, also one without a
    newline."""
    engine = make_engine(on_start=_LAST_WORDS)

    async def session(channel: Channel) -> None:
        channel.send_nowait(load())
        await until_gone(channel)

    with capture_logs() as logs:
        ended = trio.run(engine.run, session)
    assert ended.last_stderr == (*(f"line {n}" for n in range(101, 500)), "the very last words")
    lines = [entry["line"] for entry in logs if entry["event"] == "engine_stderr"]
    assert lines[:2] == ["a stray print", "a stray write"]
    assert (len(lines), lines[-1]) == (503, "the very last words")
    assert capfd.readouterr().out == ""


_PARENT = """
import os, sys
import trio
from scheduler.shared.messages import PROTOCOL_VERSION, Load, ScriptedPlan
from scheduler.processes.process import ProcessLauncher
from tests.contracts.journal import request

async def session(channel):
    plan = ScriptedPlan(step_seconds=float(sys.argv[1]))
    channel.send_nowait(Load("scripted", "", 4, 512, 8, "auto", plan))
    await channel.receive()
    channel.send_nowait(request(1, [1], 1000000))
    await trio.sleep(0.1)
    print("running", flush=True)
    await trio.sleep_forever()

environment = {**os.environ, "PYTHONPATH": os.environ["TEST_ENGINE_PATH"]}
trio.run(ProcessLauncher(environment, stop_seconds=60).run, session)
"""


@pytest.mark.parametrize(
    ("step_seconds", "hang_at_step"), [(0.001, 0), (30.0, 0), (0.0, 1)], ids=["busy", "long step", "hanging"]
)
def test_a_killed_parent_leaves_no_orphan(
    make_child: Callable[..., RealEngine], step_seconds: float, hang_at_step: int
) -> None:
    """SIGKILL of the parent, which cannot react: the engine is gone within a second, also from the middle of
    a long step and from one that never ends."""
    engine = make_child(in_engine_process(Faults(hang_at_step=hang_at_step)))
    root = str(Path(scheduler.__file__).parents[1])
    environment = {
        **engine.environment,
        "PYTHONPATH": root,
        "TEST_ENGINE_PATH": engine.environment["PYTHONPATH"],
    }
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(step_seconds)],
        env=environment,
        stdout=subprocess.PIPE,
    ) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"running\n"
            assert engine.lives
        finally:
            parent.kill()
        killed_at = time.perf_counter()
        while engine.lives:
            assert time.perf_counter() - killed_at < _SOON_SECONDS, "the engine outlived its parent"
            time.sleep(0.005)


@pytest.mark.parametrize("free", range(6))
def test_without_descriptors_there_is_no_engine_and_nothing_is_left_open(
    child: RealEngine, free: int
) -> None:
    """At any point of the start; with descriptors again the next engine starts."""
    seen: list[str] = []

    async def session(channel: Channel) -> None:
        seen.append((await started(channel, ScriptedPlan())).device)

    async def run() -> None:
        # What earlier tests of this process left is closed now, and not while descriptors are counted.
        gc.collect()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [os.dup(0) for _ in range(free)]
        first = os.dup(0)
        os.close(first)
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first, limits[1]))
        try:
            with pytest.raises(LaunchFailed, match="Too many open files"):
                await child.launcher.run(session)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        again = os.dup(0)
        os.close(again)
        assert again == first - free
        await child.launcher.run(session)

    trio.run(run)
    assert seen == ["scripted"]
