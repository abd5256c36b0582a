"""What a server's event loop does at once: the CPU time of each step of a task, and of each turn of the loop.

CPU time, so that a machine with more to do than cores lengthens none.
"""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

SOCKET = "watch"


@dataclass(slots=True)
class Findings:
    """The longest of each since the last look, in seconds. A turn is all that runs between two waits for
    sockets."""

    step: float = 0.0
    stepped: str = ""
    """The task of the longest step."""
    turn: float = 0.0
    apart: int = 0
    """The number of partial collections after which Python starts a full one by itself."""


class LoopWatch(trio.abc.Instrument):
    """Watches the loop of the thread that makes it."""

    def __init__(self) -> None:
        self.found = Findings()
        self._step = self._turn = 0.0

    def look(self) -> Findings:
        """Return what was found since the last look. From any thread."""
        found, self.found = self.found, Findings()
        found.apart = gc.get_threshold()[2]
        return found

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._step
        if seconds > self.found.step:
            self.found.step, self.found.stepped = seconds, task.name

    def after_io_wait(self, timeout: float) -> None:
        self._turn = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._turn:
            self.found.turn = max(self.found.turn, time.thread_time() - self._turn)


def install(folder: Path) -> None:
    """In the server, before it runs its loop."""
    run: Any = trio.run

    def watched(main: Any, *arguments: Any, **options: Any) -> Any:
        watch = LoopWatch()
        threading.Thread(target=_tell, args=(watch, folder), daemon=True).start()
        return run(main, *arguments, instruments=[watch], **options)

    trio.run = watched  # type: ignore[assignment]


def _tell(watch: LoopWatch, folder: Path) -> None:
    """Answer each connection by what was found."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen()
        while True:
            asking, _ = listener.accept()
            with asking:
                asking.sendall(json.dumps(asdict(watch.look())).encode())
