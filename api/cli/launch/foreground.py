"""Run an agent as a child that owns the terminal: it gets the signals, and its exit code is returned.

It does not replace this process by exec, which must remove temporary files and perhaps end a server after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from api.cli.errors import OperatorError
from api.cli.launch.agent import FOLDER, Setup

_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends them to its whole foreground group, of which the agent is one."""
_FORWARDED = (*_TERMINALS, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def environment_of(setup: Setup, environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the agent's whole environment; `folder` has the setup's files."""
    kept = {name: value for name, value in environment.items() if name not in setup.removed}
    return kept | {name: _placed(value, folder) for name, value in setup.environment.items()}


def _placed(value: str, folder: Path) -> str:
    return f"{folder}{value.removeprefix(FOLDER)}" if value.startswith(FOLDER) else value


def run(setup: Setup, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the agent to its end. Return its exit code, as a shell does: 128 and the number where a signal
    ended it. Raise OperatorError if it cannot be run.

    `command`: its executable and all of its arguments.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-launch-") as name:
        folder = Path(name)
        for file, content in setup.files.items():
            (folder / file).write_text(content, "utf-8")
        with _forwarding() as adopt:
            try:
                child = subprocess.Popen(command, env=environment_of(setup, environment, folder))
            except OSError as error:
                raise OperatorError(f"cannot run {command[0]}: {error.strerror}") from error
            adopt(child.pid)
            child.returncode = os.waitstatus_to_exitcode(_wait(child.pid))
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait(pid: int) -> int:
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        # Ctrl-Z stopped the agent: the shell waits for this process, so this one must stop, too.
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)


@contextmanager
def _forwarding() -> Iterator[Callable[[int], None]]:
    """Forward this process's signals to the child whose id the caller passes to the yielded function, also
    signals that came before."""
    children: list[int] = []
    early: list[int] = []

    def forward(number: int, frame: FrameType | None = None) -> None:
        if number in _TERMINALS and _in_foreground():
            return
        if not children:
            early.append(number)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def adopt(pid: int) -> None:
        children.append(pid)
        for number in early:
            forward(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield adopt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Return whether a terminal sent the signal to the agent as well."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
