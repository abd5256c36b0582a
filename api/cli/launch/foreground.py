"""Run an agent as a child that owns the terminal: it gets the signals, and its exit code is returned.

It does not replace this process by exec, which must remove temporary files after it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from api.cli.errors import OperatorError
from api.cli.launch.agents import Setup

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_CAUGHT = (signal.SIGINT, signal.SIGQUIT, *_FORWARDED)
"""A terminal sends the first two to its whole foreground group, of which the agent is one."""


def environment_of(setup: Setup, environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the agent's whole environment, after writing the setup's files into `folder`."""
    kept = {name: value for name, value in environment.items() if name not in setup.removed}
    files = {variable: folder / f"{variable.lower()}.json" for variable in setup.files}
    for variable, path in files.items():
        path.write_text(json.dumps(setup.files[variable]), "utf-8")
    return kept | dict(setup.environment) | {variable: str(path) for variable, path in files.items()}


def run(setup: Setup, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the agent to its end. Return its exit code, as a shell does: 128 and the number where a signal
    ended it. Raise OperatorError if it cannot be run.

    `command`: its executable and all of its arguments.
    """
    children: list[int] = []
    early: list[int] = []

    def forward(number: int, frame: FrameType | None = None) -> None:
        if number not in _FORWARDED:
            return
        if not children:
            early.append(number)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    before = {number: signal.signal(number, forward) for number in _CAUGHT}
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-launch-") as folder:
            own = environment_of(setup, environment, Path(folder))
            try:
                child = subprocess.Popen(command, env=own)
            except OSError as error:
                raise OperatorError(f"cannot run {command[0]}: {error.strerror}") from error
            children.append(child.pid)
            for number in early:
                forward(number)
            child.returncode = os.waitstatus_to_exitcode(_wait(child.pid))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait(pid: int) -> int:
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        # Ctrl-Z stopped the agent: the shell waits for this process, so this one must stop, too.
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
