"""A real engine process of several ranks, driven over its link without a scheduler."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadtests.processes import children
from scheduler.shared.framing import encode, server_inbound
from scheduler.shared.messages import (
    Fault,
    FromEngine,
    Load,
    RankGroup,
    Ready,
    ScriptedPlan,
    StepOutput,
    ToEngine,
)

LIMIT_SECONDS = 60.0
"""Far above any duration here: it only keeps a broken test from waiting forever."""


def load(ranks: int, plan: ScriptedPlan | None = None) -> Load:
    group = RankGroup(ranks, "ring", ())
    return Load("scripted", "", 4, 512, 8, "auto", plan or ScriptedPlan(), ranks=group)


@dataclass
class Engine:
    """`tokens`: by request, all that were heard. `fault`: its last message; None before it."""

    process: subprocess.Popen[str]
    link: socket.socket
    tokens: dict[int, list[int]] = field(default_factory=dict)
    fault: Fault | None = None
    ready: Ready | None = None

    def __post_init__(self) -> None:
        self._reader = server_inbound()
        self.link.settimeout(LIMIT_SECONDS)

    def send(self, *messages: ToEngine) -> None:
        for message in messages:
            self.link.sendall(encode(message))

    def hear(self, enough: Callable[[FromEngine], bool]) -> None:
        """Until a message is enough, or the engine has closed its link."""
        while data := self._received():
            for message in self._reader.feed(data):
                self._note(message)
                if enough(message):
                    return

    def _received(self) -> bytes:
        try:
            return self.link.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def _note(self, message: FromEngine) -> None:
        match message:
            case Ready():
                self.ready = message
            case Fault():
                self.fault = message
            case StepOutput():
                for out in message.tokens:
                    self.tokens.setdefault(out.request_id, []).append(out.token)

    def hear_retired(self, count: int) -> None:
        left = count

        def enough(message: FromEngine) -> bool:
            nonlocal left
            left -= len(message.retired) if isinstance(message, StepOutput) else 0
            return left <= 0

        self.hear(enough)

    def hear_tokens(self, count: int) -> None:
        self.hear(lambda message: sum(map(len, self.tokens.values())) >= count)

    def hear_end(self) -> int:
        """The exit status, after the end of the link."""
        self.hear(lambda message: False)
        return self.process.wait(LIMIT_SECONDS)

    @property
    def followers(self) -> list[int]:
        """The process ids of the other ranks."""
        return children(self.process.pid)


@contextmanager
def engine(load: Load, environment: dict[str, str] | None = None) -> Iterator[Engine]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "scheduler.engine", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        try:
            started = Engine(process, ours)
            started.send(load)
            started.hear(lambda message: isinstance(message, Ready | Fault))
            yield started
        finally:
            process.kill()
            process.communicate()


def started_with(folder: Path, program: str) -> dict[str, str]:
    """The environment of an engine of which every process runs `program` at its start."""
    (folder / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[4])])}


def gone(pids: list[int]) -> bool:
    """Whether all of these processes end within some seconds; zombies have ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not [pid for pid in pids if _lives(pid)]:
            return True
        time.sleep(0.01)
    return False


def _lives(pid: int) -> bool:
    status = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return status.stdout.strip()[:1] not in ("", "Z")


def replaced(load: Load, **changes: object) -> Load:
    changed: Load = msgspec.structs.replace(load, **changes)
    return changed
