"""The commands as processes, on a terminal and in a pipe: keys, signals, exit codes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.processes import children
from tests.api.cli.stand_in import StandIn, standing_in

SECONDS = 60.0
CTRL_C, CTRL_D = b"\x03", b"\x04"
PROMPT = b"> "


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with standing_in() as found:
        yield found


class Terminal:
    """One process on a pseudo-terminal of 80 by 24."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self.process = process
        self.shown = b""

    def wait_for(self, text: bytes) -> None:
        """Read until the process has written this, behind what was waited for before."""
        deadline = time.monotonic() + SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += os.read(self._ours, 65536)
        self.shown = self.shown.partition(text)[2]

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def exit_code(self) -> int:
        """Read on until it has ended."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read()
        self._read()
        return int(self.process.returncode)

    def _read(self) -> None:
        while select.select([self._ours], [], [], 0.05)[0]:
            self.shown += os.read(self._ours, 65536)


def _take_terminal() -> None:
    """Make standard input the terminal from which Ctrl-C reaches this process."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def on_terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    """Behind the block the process has ended, and the terminal is as it was before."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "api", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "XDG_CACHE_HOME": str(folder), "TERM": "xterm-256color"},
        preexec_fn=_take_terminal,
    )
    try:
        yield Terminal(ours, process)
        assert process.poll() is not None
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_a_chat_that_is_terminated_leaves_the_terminal(server: StandIn, tmp_path: Path) -> None:
    """While a line is typed. Of a signal just before the wait for a key, Python learns at the next one."""
    with on_terminal(tmp_path, "chat", "--url", server.url) as terminal:
        terminal.wait_for(PROMPT)
        while terminal.process.poll() is None:
            terminal.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert terminal.exit_code() in (143, -signal.SIGTERM)
        assert b"Traceback" not in terminal.shown


def test_a_chat_from_the_first_key_to_the_last(server: StandIn, tmp_path: Path) -> None:
    """Ctrl-C ends the answer, whose connection is closed; then the chat."""
    with on_terminal(tmp_path, "chat", "--url", server.url) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press(b"hi\r")
        terminal.wait_for(b"**Hello** you.")
        terminal.wait_for(PROMPT)
        terminal.press(b"forever\r")
        terminal.wait_for(b"word word")
        terminal.press(CTRL_C)
        terminal.wait_for(b"stopped")
        assert server.hung_up.wait(SECONDS)
        terminal.wait_for(PROMPT)
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        assert b"Traceback" not in terminal.shown
    assert server.bodies[-1]["messages"][1] == {"role": "assistant", "content": "**Hello** you."}


def test_a_pipe_gets_the_answer_and_nothing_else(server: StandIn) -> None:
    command = [sys.executable, "-m", "api", "chat", "--url", server.url, "--temperature", "0"]
    done = subprocess.run(
        command, input="question\n", capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "**Hello** you.\n", "")
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "question"}]
    assert server.bodies[-1]["temperature"] == 0


def test_a_server_says_when_its_engine_serves_again(tmp_path: Path) -> None:
    """The line of a load that is over does not stay."""
    with on_terminal(tmp_path, "serve", "--model", "embedded", "--port", "0") as terminal:
        terminal.wait_for(b"try  ")
        (engine,) = children(terminal.process.pid)
        os.kill(engine, signal.SIGKILL)
        terminal.wait_for(b"\x1b[Krestarting the engine was killed by SIGKILL")
        terminal.wait_for(b"\x1b[Kloading    reading the tokenizer")
        terminal.wait_for(b"\x1b[Kready      the engine serves again\r\n")
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 0
