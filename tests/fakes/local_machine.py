"""Machines that join a server, all of them this one. A loop here restarts an engine, as systemd or launchd
does on a real machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import trio

from scheduler.engine.join.joining import TOKEN_VARIABLE
from scheduler.shared.own_path import with_own_path

LOOPBACK = "127.0.0.1"
_END_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


def joining(
    port: int, token: str, caches: Path, device: str, server: str = LOOPBACK
) -> tuple[list[str], dict[str, str]]:
    """Return the command of an engine that joins the server on this port, and its environment."""
    command = [sys.executable, "-m", "scheduler.engine", "--join", f"{server}:{port}"]
    command += ["--device", device, "--name", f"machine-{device}", "--blas", "off"]
    return command, with_own_path({**os.environ, "XDG_CACHE_HOME": str(caches), TOKEN_VARIABLE: token})


class LocalMachine:
    """One device of this machine, whose engine dials a server again whenever it has ended. `run` must be
    running."""

    def __init__(
        self,
        caches: Path,
        port: int,
        token: str,
        device: str = "0",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`caches`: the folder of its locks. `environment`: the engine's variables beside this process's."""
        self._command, own = joining(port, token, caches, device)
        self._environment = {**own, **(environment or {})}
        self.pids: list[int] = []
        """Process ids of its engines, the newest one last."""

    async def run(self) -> None:
        """Run engines, one after another. Never return: cancel it to end the engine."""
        while True:
            process = await trio.lowlevel.open_process(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
            self.pids.append(process.pid)
            try:
                await process.wait()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
                    process.kill()
                    await process.wait()
            await trio.sleep(_PAUSE_SECONDS)
