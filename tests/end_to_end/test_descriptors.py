"""File descriptors run out: clients must not be able to take those that the next engine needs."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from contextlib import ExitStack

from tests.end_to_end.serving import Served, eventually, serving


def crowd(served: Served, connections: int) -> ExitStack:
    """Clients that connect, send nothing and stay."""
    stack = ExitStack()
    for _ in range(connections):
        stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=10))
    return stack


def test_a_crowd_of_clients_leaves_room_for_the_next_engine() -> None:
    """And a server without descriptors waits for them: neither its engine's death nor new clients end it, and
    the log is not flooded."""
    with serving("--engine", "scripted", descriptors=128) as served:
        lowered = [line for line in served.log if "max_connections_lowered" in line]
        assert len(lowered) == 1, served.log
        with crowd(served, 150):
            os.kill(served.engine_pid(), signal.SIGKILL)
            eventually(lambda: any('"restarts": 1' in line for line in served.log))
            eventually(lambda: sum("engine_ready" in line for line in served.log) == 2)
        eventually(lambda: served.get("/ready")[0] == 200)
        assert served.post()[0] == 200
        assert not any("Too many open files" in line for line in served.log)
        if sys.platform != "linux":
            return  # only Linux changes the limits of a running process
        limits = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (4, limits[1]))
        before = sum("engine_died" in line for line in served.log)
        with crowd(served, 3):
            os.kill(served.engine_pid(), signal.SIGKILL)
            eventually(lambda: sum("engine_died" in line for line in served.log) >= before + 3)
            assert any("Too many open files" in line for line in served.log if "engine_died" in line)
        assert sum('"request": "accept"' in line for line in served.log) == 1, served.log
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, limits)
        eventually(lambda: served.get("/ready")[0] == 200, 20)
        assert served.post()[0] == 200
