"""An agent owns the terminal: its exit code, its signals, its files; a shell script stands in for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api.cli.errors import OperatorError
from api.cli.launch import foreground
from api.cli.launch.agents import Setup

SECONDS = 60
RUN = """
import os, sys
from api.cli.launch.agents import Setup
from api.cli.launch.foreground import run
sys.exit(run(Setup({}), ("sh", "-c", sys.argv[1]), os.environ))
"""
UNTIL_ENDED = "while :; do sleep 0.05; done"


def run(script: str, setup: Setup | None = None) -> int:
    return foreground.run(setup or Setup({}), ("sh", "-c", script), os.environ)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_its_exit_code_is_the_commands(script: str, code: int) -> None:
    """As a shell has it, where a signal ended it."""
    assert run(script) == code


def test_its_files_are_there_while_it_runs(tmp_path: Path) -> None:
    record = tmp_path / "record"
    setup = Setup({"RECORD": str(record)}, files={"F": {}})
    assert run('echo "$F" > "$RECORD"; cat "$F" >> "$RECORD"', setup) == 0
    path, content = record.read_text().splitlines()
    assert content == "{}"
    assert not Path(path).parent.exists()


def test_what_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"cannot run .*: Permission denied"):
        foreground.run(Setup({}), (str(tmp_path),), os.environ)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_for_the_command_reaches_the_agent(number: int) -> None:
    """The agent sends it here, and gets it back; the handlers are then as they were."""
    before = signal.getsignal(number)
    assert run(f"trap 'exit 7' {number}; kill -{number} $PPID; {UNTIL_ENDED}") == 7
    assert signal.getsignal(number) is before


def test_a_terminals_interrupt_is_not_sent_twice() -> None:
    """The agent is in the terminal's foreground group, and gets it from there."""
    number = signal.SIGINT
    assert run(f"trap 'exit 7' {number}; kill -{number} $PPID; sleep 0.3; exit 5") == 5


def test_ctrl_c_is_the_agents() -> None:
    """It may go on: here it ends at the second one. Nothing of it is seen in the command."""
    terminal, other_end = os.openpty()
    script = f"n=0; trap 'n=$((n+1)); echo got-$n; test $n = 2 && exit 9' INT; echo ready; {UNTIL_ENDED}"
    take = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    child = subprocess.Popen(
        [sys.executable, "-c", take + RUN, script],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        start_new_session=True,
    )
    os.close(other_end)
    seen = ""
    try:
        for awaited in ("ready", "got-1"):
            while awaited not in seen:
                seen += os.read(terminal, 4096).decode()
            os.write(terminal, b"\x03")
        assert child.wait(SECONDS) == 9
        seen += os.read(terminal, 4096).decode()
    finally:
        child.kill()
        os.close(terminal)
    assert "got-2" in seen
    assert "Traceback" not in seen


def test_ctrl_z_stops_the_command_as_well() -> None:
    """Or the shell would wait for it; once continued, so is the agent."""
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, "kill -STOP $$; exit 5"], start_new_session=True, text=True
    )
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            pid, status = os.waitpid(child.pid, os.WUNTRACED | os.WNOHANG)
            if pid:
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert os.WIFSTOPPED(status)
        os.kill(child.pid, signal.SIGCONT)
        assert child.wait(SECONDS) == 5
    finally:
        child.kill()
