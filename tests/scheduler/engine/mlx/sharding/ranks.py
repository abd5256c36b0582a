"""Processes of one group of ranks here, which play what a test asks of them: the imports are paid once.

Each calls `run(rank, ...)` of a module, with the sockets over which `engine/ranks` would connect them.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import msgspec

from scheduler.engine.mlx.sharding.rank import Exchange, Rank
from scheduler.engine.mlx_lm_import import without_tokenizers
from scheduler.shared.messages import RankGroup

_LENGTH = struct.Struct("<I")


def free_addresses(count: int) -> tuple[str, ...]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)


def ring(ranks: int = 2) -> RankGroup:
    return RankGroup(ranks, "ring", free_addresses(ranks), token="of these tests")


class Ranks:
    """They start with the first play, and again after one that failed. Close them."""

    def __init__(self, ranks: int = 2) -> None:
        self._ranks = ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def play(self, module: str, *arguments: str, seconds: float = 240.0) -> list[Any]:
        """What `module.run(rank, *arguments)` returned on each rank, from JSON. Raises AssertionError with
        what was written to stderr if one failed, or was not done in time."""
        if not self._processes:
            self._start()
        deadline = time.monotonic() + seconds
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(json.dumps([module, *arguments]).encode() + b"\n")
                process.stdin.flush()
            return [self._heard(number, deadline) for number in range(self._ranks)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._processes = []
        self._stack.close()

    def _start(self) -> None:
        group = ring(self._ranks)
        links = [socket.socketpair() for _ in range(self._ranks - 1)]
        ends = [[link[0] for link in links], *([link[1]] for link in links)]
        self._errors = []
        for _ in ends:
            with ExitStack() as opened:
                self._errors.append(opened.enter_context(tempfile.TemporaryFile()))
                self._stack.push(opened.pop_all())
        for number, own in enumerate(ends):
            files = [one.fileno() for one in own]
            told = json.dumps([number, msgspec.to_builtins(group), files])
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, told],
                pass_fds=files,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors[number],
            )
            self._processes.append(self._stack.enter_context(process))
        for one in (one for own in ends for one in own):
            one.close()

    def _heard(self, number: int, deadline: float) -> Any:
        out = self._processes[number].stdout
        assert out is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(out.fileno(), 1 << 16) if ready else b""
            assert more, f"rank {number} {'ended' if ready else 'is not done'}: {self._stderr()}"
            line += more
        return json.loads(line)

    def _stderr(self) -> str:
        texts = []
        for number, file in enumerate(self._errors):
            file.seek(0)
            texts.append(f"rank {number}: {file.read()[-1500:].decode()}")
        return "\n".join(texts)


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
    number, group, files = json.loads(sys.argv[1])
    out, sys.stdout = sys.stdout, sys.stderr
    links = [socket.socket(fileno=one) for one in files]
    rank = Rank(number, msgspec.convert(group, RankGroup), exchange_over(number, links))
    with without_tokenizers():
        import_module("mlx_lm")
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        try:
            print(json.dumps(import_module(module).run(rank, *arguments)), file=out, flush=True)
        except BaseException:
            traceback.print_exc()
            break
    # MLX's ring threads would wait for the other ranks at the end of the process.
    os._exit(1)


if __name__ == "__main__":
    main()
