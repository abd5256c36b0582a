"""An engine process under test, and a check with the system whether it lives.

Each holds a lock on a file while it lives (`_ON_START`, run by Python's own start-up hook), so that the
system answers whether it is gone, also for an orphan.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import scheduler
from scheduler.processes.channel import Channel, EngineGone
from scheduler.processes.process import EngineLauncher, Exit, ProcessLauncher
from scheduler.shared.messages import PROTOCOL_VERSION, Begun, FromEngine, Load, Ready, ScriptedPlan
from tests.fakes.joined_machine import OverTcp

_LIMIT_SECONDS = 20.0
"""Far above any duration here: it only keeps a broken test from waiting forever."""

_ON_START = """
import fcntl, os
if os.environ.get("MAC_SIM") == "1":  # This hook has taken the place of the simulated Mac's.
    from tests.macos.simulated import install
    install()
_held = open(os.environ["TEST_ENGINE_FILE"], "w")
fcntl.flock(_held, fcntl.LOCK_EX)
_held.write(str(os.getpid()))
_held.flush()
"""


class RealEngine:
    """The launcher under test, and a check with the system whether its engine lives."""

    def __init__(
        self, folder: Path, on_start: str = "", stop_seconds: float = 10.0, *, over_tcp: bool = False
    ) -> None:
        (folder / "sitecustomize.py").write_text(_ON_START + on_start)
        self._file = folder / "engine"
        # Buffered even if the tests are not: some faults show only then.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        self.environment = {
            **environment,
            "PYTHONPATH": os.pathsep.join([str(folder), str(Path(scheduler.__file__).parents[1])]),
            "TEST_ENGINE_FILE": str(self._file),
        }
        self.launcher: EngineLauncher = ProcessLauncher(self.environment, stop_seconds)
        if over_tcp:
            own = {name: self.environment[name] for name in ("PYTHONPATH", "TEST_ENGINE_FILE")}
            self.launcher = OverTcp(folder, stop_seconds, own)
        self.exit: Exit | None = None

    @property
    def pid(self) -> int:
        return int(self._file.read_text())

    @property
    def started(self) -> bool:
        return self._file.exists() and self._file.read_text() != ""

    @property
    def lives(self) -> bool:
        with self._file.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def assert_gone(self) -> None:
        """Not only ended: reaped, so that not even its process id is left."""
        assert not self.lives
        with pytest.raises(ProcessLookupError):
            os.kill(self.pid, 0)

    async def run(self, session: Callable[[Channel], Awaitable[None]]) -> Exit:
        with trio.fail_after(_LIMIT_SECONDS):
            self.exit = await self.launcher.run(session)
        return self.exit

    def rescue(self) -> None:
        """For teardown: if the launcher failed, the test must not leave its engine behind as well."""
        if self.started and self.lives:
            os.kill(self.pid, signal.SIGKILL)


def load(plan: ScriptedPlan | None = None, version: int = PROTOCOL_VERSION) -> Load:
    return Load("scripted", "", 4, 512, 8, "auto", plan or ScriptedPlan(), version=version)


async def started(channel: Channel, plan: ScriptedPlan | None = None) -> Ready:
    channel.send_nowait(load(plan))
    ready = await channel.receive()
    assert isinstance(ready, Ready)
    return ready


async def next_result(channel: Channel) -> FromEngine:
    """Return the next message that does not only say what the engine does."""
    while isinstance(message := await channel.receive(), Begun):
        pass
    return message


async def until_gone(channel: Channel) -> list[FromEngine]:
    """Return all results that come."""
    heard: list[FromEngine] = []
    try:
        while True:
            heard.append(await next_result(channel))
    except EngineGone:
        return heard
