"""Starts the processes of one group of ranks here, and collects what each of them says.

Each runs `run(rank, ...)` of a module, with the sockets over which `engine/ranks` would connect them.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import msgspec

from scheduler.engine.mlx.sharding.rank import Exchange, Rank
from scheduler.link.messages import RankGroup

_LENGTH = struct.Struct("<I")


def free_addresses(count: int) -> tuple[str, ...]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)


def ring(ranks: int = 2) -> RankGroup:
    return RankGroup(ranks, "ring", free_addresses(ranks), token="of these tests")


def played(module: str, *arguments: str, ranks: int = 2, seconds: float = 240.0) -> list[Any]:
    """What `module.run(rank, *arguments)` returned on each rank, from JSON. Raises AssertionError with what
    was written to stderr if one failed."""
    processes, links = _started(module, arguments, ring(ranks))
    deadline = time.monotonic() + seconds
    said: list[Any] = []
    try:
        for number, process in enumerate(processes):
            out, error = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            assert process.returncode == 0, f"rank {number} ended with {process.returncode}: {error[-2000:]}"
            said.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for link in links:
            link.close()
    return said


def _started(
    module: str, arguments: Sequence[str], group: RankGroup
) -> tuple[list[subprocess.Popen[str]], list[socket.socket]]:
    links = [socket.socketpair() for _ in range(group.ranks - 1)]
    hubs, ends = [link[0] for link in links], [link[1] for link in links]
    processes = []
    for number in range(group.ranks):
        own = [one.fileno() for one in (hubs if number == 0 else ends[number - 1 : number])]
        told = json.dumps([number, msgspec.to_builtins(group), own, module, *arguments])
        command = [sys.executable, "-m", __name__, told]
        processes.append(
            subprocess.Popen(command, pass_fds=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return processes, [*hubs, *ends]


def exchange_over(number: int, links: Sequence[socket.socket]) -> Exchange:
    """Rank 0 collects, and tells all."""

    def exchange(mine: bytes) -> list[bytes]:
        if number:
            (link,) = links
            _send(link, mine)
            return [_receive(link) for _ in range(_LENGTH.unpack(_receive(link))[0])]
        said = [mine, *(_receive(link) for link in links)]
        for link in links:
            _send(link, _LENGTH.pack(len(said)))
            for each in said:
                _send(link, each)
        return said

    return exchange


def _send(link: socket.socket, said: bytes) -> None:
    link.sendall(_LENGTH.pack(len(said)) + said)


def _receive(link: socket.socket) -> bytes:
    return _exactly(link, _LENGTH.unpack(_exactly(link, _LENGTH.size))[0])


def _exactly(link: socket.socket, count: int) -> bytes:
    said = link.recv(count, socket.MSG_WAITALL) if count else b""
    if len(said) < count:
        raise EOFError("the other rank is gone")
    return said


def main() -> None:
    number, group, own, module, *arguments = json.loads(sys.argv[1])
    links = [socket.socket(fileno=one) for one in own]
    rank = Rank(number, msgspec.convert(group, RankGroup), exchange_over(number, links))
    said = import_module(module).run(rank, *arguments)
    print(json.dumps(said), flush=True)
    # Every rank is done: MLX's ring threads would wait for the others at the end of the process.
    rank.exchange(b"")
    os._exit(0)


if __name__ == "__main__":
    main()
