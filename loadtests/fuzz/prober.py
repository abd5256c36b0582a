"""Measure how long a server's event loop stalls, from a separate process.

The prober requests `/health` over one connection, again and again, and times each answer. A machine with more
work than cores delays answers too, which is no defect of the server. So the prober subtracts from each
answer's time the time in which a thread of the server, or the prober itself, was ready to run and got no core
(`/proc/*/schedstat`). The rest is time in which the server held its event loop. Where the kernel does not
report it (macOS), nothing is subtracted.

Run it as a program: `python -m loadtests.fuzz.prober PORT PID`. It answers each line on its stdin with its
findings since the last one, and ends with its stdin.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

_PAUSE_SECONDS = 0.02
_TIMEOUT_SECONDS = 15.0


@dataclass(slots=True)
class Silence:
    """The findings of a prober. `seconds` is the longest stall; `wall_seconds` includes the machine's
    noise."""

    probes: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


class Prober:
    """A probing process for the server of this port and process id, from its start to its `close`."""

    def __init__(self, port: int, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(port), str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def silence(self) -> Silence:
        """Return the findings since the last call, when the current probe is over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Silence(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _waits(*pids: int) -> dict[str, int]:
    """Return nanoseconds for which each thread of these processes has waited for a core so far; {} if the
    kernel does not report it."""
    waits: dict[str, int] = {}
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        # A thread may have ended.
        with suppress(OSError, IndexError):
            waits[path.parent.name] = int(path.read_text().split()[1])
    return waits


def _noise_seconds(before: dict[str, int], after: dict[str, int]) -> float:
    """Return the noise between two readings. A thread that has ended in between counts for nothing."""
    return sum(max(0, wait - before.get(thread, 0)) for thread, wait in after.items()) / 1e9


def _probe(connection: HTTPConnection) -> str | None:
    """Return what is wrong with one answer, or None."""
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
    except (OSError, HTTPException) as error:
        connection.close()
        return type(error).__name__
    return None if answer.status == 200 else str(answer.status)


def _watch(port: int, pid: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    silence = Silence()
    while True:
        if select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(asdict(silence)), flush=True)
            silence = Silence()
        waits, began = _waits(pid, os.getpid()), time.monotonic()
        failure = _probe(connection)
        wall = time.monotonic() - began
        silence.probes += 1
        silence.failures += [failure] if failure else []
        noise = _noise_seconds(waits, _waits(pid, os.getpid()))
        silence.seconds = max(silence.seconds, wall - noise)
        silence.wall_seconds = max(silence.wall_seconds, wall)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]))
