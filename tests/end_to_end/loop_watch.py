"""What a server's event loop does at once: the CPU time of each step of a task, of each turn of the loop,
and of each of Python's collections.

`watching` starts `penstock serve` with a watch inside. CPU time, so that a machine with more to do than cores
lengthens none. Run as a program it is that server.
"""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import trio

_START_SECONDS = 100
_MARK = "loop "


@dataclass(slots=True)
class Findings:
    """The longest of each since the last look, in seconds. A turn is all that runs between two waits for
    sockets."""

    step: float = 0.0
    stepped: str = ""
    """The task of the longest step."""
    turn: float = 0.0
    collections: dict[int, float] = field(default_factory=dict)
    """By generation."""
    apart: int = 0
    """The number of partial collections after which Python starts a full one by itself."""

    def note_step(self, seconds: float, name: str) -> None:
        if seconds > self.step:
            self.step, self.stepped = seconds, name

    def note_collection(self, generation: int, seconds: float) -> None:
        self.collections[generation] = max(seconds, self.collections.get(generation, 0.0))


class LoopWatch(trio.abc.Instrument):
    """Watches the loop of the thread that makes it."""

    def __init__(self) -> None:
        self.found = Findings()
        self._step = self._turn = self._collection = 0.0
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collects)

    def look(self) -> Findings:
        """Return what was found since the last look. From any thread."""
        found, self.found = self.found, Findings()
        found.apart = gc.get_threshold()[2]
        return found

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.found.note_step(time.thread_time() - self._step, task.name)

    def after_io_wait(self, timeout: float) -> None:
        self._turn = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._turn:
            self.found.turn = max(self.found.turn, time.thread_time() - self._turn)

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collection = time.thread_time()
        else:
            self.found.note_collection(info["generation"], time.thread_time() - self._collection)


@dataclass
class Watched:
    """A server with a watch in its loop."""

    process: subprocess.Popen[str]
    port: int = 0

    def look(self) -> Findings:
        """Return what was found since the last look."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(_MARK):
                found = json.loads(line.removeprefix(_MARK))
                collections = {int(number): seconds for number, seconds in found.pop("collections").items()}
                return Findings(**found, collections=collections)
        raise AssertionError("the server has ended")


@contextmanager
def watching(*arguments: str) -> Iterator[Watched]:
    """Serve with these arguments until the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, "serve", "--port", "0", "--log-level", "error", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(_START_SECONDS, process.kill)
    watchdog.start()
    try:
        port = _port(process)
        watchdog.cancel()
        yield Watched(process, port)
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def _port(process: subprocess.Popen[str]) -> int:
    port = 0
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.match(r"listening +http://127.0.0.1:(\d+)", line):
            port = int(found[1])
        if line.startswith("try "):
            return port
    raise AssertionError("the server did not start")


def _serve() -> None:
    run: Any = trio.run

    def watched(main: Any, *arguments: Any, **options: Any) -> Any:
        watch = LoopWatch()
        threading.Thread(target=_answer, args=(watch,), daemon=True).start()
        return run(main, *arguments, instruments=[watch], **options)

    trio.run = watched  # type: ignore[assignment]
    from api.cli.command_line import main

    main()


def _answer(watch: LoopWatch) -> None:
    for _ in sys.stdin:
        print(_MARK + json.dumps(asdict(watch.look())), flush=True)


if __name__ == "__main__":
    _serve()
