"""A machine that is gone without a word: its cable is pulled. Both sides notice by keep-alive.

The other machine is a network namespace, which needs root on Linux.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from scheduler.cluster.joined import JoinedLauncher
from scheduler.processes.channel import Channel
from scheduler.processes.listener import Dialed, Listener
from scheduler.processes.process import Exit
from scheduler.shared.hello import new_token
from scheduler.shared.keep_alive import SILENCE_SECONDS
from scheduler.shared.messages import ScriptedPlan
from tests.contracts.journal import request
from tests.fakes.local_machine import joining
from tests.scheduler.processes.real_engine import started, until_gone

_NETWORK = f"10.213.{os.getpid() % 250}"
_FRONT, _OTHER = f"{_NETWORK}.1", f"{_NETWORK}.2"


@dataclass(frozen=True, slots=True)
class Namespace:
    """Another machine at the end of a cable."""

    name: str

    def run(self, *command: str) -> str:
        return _run("ip", "netns", "exec", self.name, *command)

    def unplug(self) -> None:
        self.run("ip", "link", "set", "cable", "down")

    def processes(self) -> list[str]:
        return _run("ip", "netns", "pids", self.name).split()


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """A namespace in which every further Python process runs."""
    if platform.system() != "Linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root on Linux, and iproute2")
    name, cable = f"penstock-{os.getpid()}", f"pen{os.getpid()}"
    namespace = Namespace(name)
    try:
        try:
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", name)
            _run("ip", "address", "add", f"{_FRONT}/30", "dev", cable)
            _run("ip", "link", "set", cable, "up")
            namespace.run("ip", "address", "add", f"{_OTHER}/30", "dev", "cable")
            namespace.run("ip", "link", "set", "cable", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system makes no network namespaces: {error.stderr.strip()}")
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec ip netns exec {name} {sys.executable} "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        yield namespace
    finally:
        for undo in (("netns", "delete", name), ("link", "delete", cable)):
            subprocess.run(["ip", *undo], capture_output=True, check=False)


def test_an_unplugged_machine_is_dead_after_nine_seconds_on_both_sides(
    other: Namespace, tmp_path: Path
) -> None:
    """Whether its engine was idle, was in the middle of a step, or was being sent a request: the server goes
    on, and over there nobody holds the device any more."""
    silences: list[float] = []
    exits: list[Exit] = []

    async def main() -> None:
        launchers = {f"machine-{number}": JoinedLauncher() for number in range(3)}
        connected = [trio.Event() for _ in launchers]
        unplugged_at: list[float] = []
        token = new_token()

        def arrived(dialed: Dialed) -> None:
            launchers[dialed.host].offer(dialed)

        async def run(number: int, session: Callable[[Channel], object]) -> None:
            exits.append(await launchers[f"machine-{number}"].run(session))  # type: ignore[arg-type]

        def session(number: int, step_seconds: float) -> Callable[[Channel], object]:
            async def run(channel: Channel) -> None:
                await started(channel, ScriptedPlan(step_seconds=step_seconds))
                if step_seconds:
                    channel.send_nowait(request(1, [1], 1_000_000))
                connected[number].set()
                while not unplugged_at:  # noqa: ASYNC110 (the namespace)
                    await trio.sleep(0.01)
                if number == 2:
                    channel.send_nowait(request(2, [1] * 1000, 1))
                await until_gone(channel)
                silences.append(trio.current_time() - unplugged_at[0])

            return run

        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(Listener(token, arrived).serve, _FRONT, 0)
            machines = []
            for number in range(3):
                command, environment = joining(port, token, tmp_path, str(number), server=_FRONT)
                machines.append(await trio.lowlevel.open_process(command, env=environment))
            async with trio.open_nursery() as sessions:
                for number, step_seconds in enumerate((0.0, 0.01, 30.0)):
                    sessions.start_soon(run, number, session(number, step_seconds))
                for event in connected:
                    await event.wait()
                other.unplug()
                unplugged_at.append(trio.current_time())
            for machine in machines:
                await machine.wait()
            assert other.processes() == []
            silences.append(trio.current_time() - unplugged_at[0])
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert exits == [Exit(None)] * 3
    # No sooner than keep-alive can be sure, and far from Ray's 66 seconds and TCP's 15 minutes.
    assert all(SILENCE_SECONDS - 4 < seconds < 4 * SILENCE_SECONDS for seconds in silences), silences
    print(f"gone after {[round(seconds, 1) for seconds in silences]} s")
