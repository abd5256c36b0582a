"""Forms the group of `mx.distributed` in which the ranks of one engine compute.

MLX waits for its neighbours inside `init`, for ever and with Python's global lock: no thread of this process
could see a deadline, or the end of the link, pass. So the ranks meet over sockets of ours first, on the same
addresses, within a deadline and by name. If one is lost between that and `init`, a timer in C ends the
process.

Read in MLX's `mlx/distributed` (846d176, of 2026-08): what each back end wants in the environment. The ring
was run; JACCL wants macOS 26.2 and Thunderbolt 5, NCCL CUDA, and neither was.
"""

from __future__ import annotations

import faulthandler
import hmac
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b

import mlx.core as mx

from scheduler.engine.mlx.sharding.rank import RanksUnusable
from scheduler.shared.local_network import connect_failure
from scheduler.shared.messages import RankGroup

JOIN_SECONDS = 60.0
"""Bound on the time until all ranks are there: each has been started, and has imported MLX."""
_INIT_SECONDS = 60.0
"""A backstop: the ranks have met, and MLX's own attempts to connect end after 31 s."""
_RETRY_SECONDS = 0.1
_MARK_BYTES = 32


def form_group(group: RankGroup, number: int, seconds: float = JOIN_SECONDS) -> mx.distributed.Group:
    """Return MLX's group, once all ranks are in it. Raise RanksUnusable, which names the rank that did not
    come. Ends the process if MLX's own attempt does not end."""
    if not mx.distributed.is_available(group.backend):
        raise RanksUnusable(f"MLX has no back end {group.backend} here: choose another for the ranks")
    if len(group.hosts) != group.ranks or not 0 <= number < group.ranks:
        raise RanksUnusable(f"rank {number} of {group.ranks}, with addresses of {len(group.hosts)}")
    meet(group, number, seconds)
    with _environment(group, number), _ended_after(_INIT_SECONDS, group, number):
        try:
            joined = mx.distributed.init(strict=True, backend=group.backend)
            # The first collective counts the ranks that are there.
            total = mx.distributed.all_sum(mx.array(number + 1), group=joined)
            mx.eval(total)
        except (RuntimeError, ValueError) as error:
            raise RanksUnusable(
                f"rank {number} of {group.ranks} could not join by {group.backend}: {error}"
            ) from error
    if (joined.size(), total.tolist()) != (group.ranks, group.ranks * (group.ranks + 1) // 2):
        raise RanksUnusable(f"MLX joined {joined.size()} of {group.ranks} ranks")
    return joined


def meet(group: RankGroup, number: int, seconds: float) -> None:
    """Wait until this rank's neighbours in the ring are there, and nothing listens on its address any more.
    Raise RanksUnusable."""
    if group.ranks == 1:
        return
    deadline = time.monotonic() + seconds
    left, right = (number - 1) % group.ranks, (number + 1) % group.ranks
    before: socket.socket | None = None
    after: socket.socket | None = None
    try:
        with _listener(group, number) as listener:
            after = _dialled(group, number, right, deadline)
            before = _accepted(group, number, left, listener, deadline)
        # MLX is to listen here now. The rank that dials it waits for this.
        before.sendall(b"!")
        _expect(after, 1, f"rank {right} at {group.hosts[right]}", deadline)
    except OSError as error:
        raise RanksUnusable(f"rank {number} lost its neighbours while it joined: {error}") from error
    finally:
        for link in (before, after):
            if link is not None:
                link.close()


def _mark(group: RankGroup, sender: int, receiver: int) -> bytes:
    """Return what only a rank of this group can compute, and only for this neighbour."""
    statement = f"{sender}>{receiver} of {group.ranks} by {group.backend}"
    return blake2b(statement.encode(), key=group.token.encode()[:64], digest_size=_MARK_BYTES).digest()


def _listener(group: RankGroup, number: int) -> socket.socket:
    """Return a socket that listens on this rank's address. Raise RanksUnusable if there can be none."""
    host, port = _address(group.hosts[number])
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise RanksUnusable(
            f"rank {number} cannot listen on {group.hosts[number]} ({error}):"
            " give it an address of its machine"
        ) from error
    return listener


def _dialled(group: RankGroup, number: int, right: int, deadline: float) -> socket.socket:
    """Return a connection to the next rank, which may not be there yet."""
    name, reason = f"rank {right} at {group.hosts[right]}", "nothing listens there"
    while (left_seconds := deadline - time.monotonic()) > 0:
        try:
            link = socket.create_connection(_address(group.hosts[right]), timeout=min(5.0, left_seconds))
            link.sendall(_mark(group, number, right))
            return link
        except OSError as error:
            reason = connect_failure(error, _address(group.hosts[right])[0])
            time.sleep(min(_RETRY_SECONDS, left_seconds))
    raise RanksUnusable(
        f"{name} did not come in time ({reason}): is it running, and can rank {number} reach it?"
    )


def _accepted(
    group: RankGroup, number: int, left: int, listener: socket.socket, deadline: float
) -> socket.socket:
    """Return the connection of the rank before this one; strangers are closed."""
    name, wanted = f"rank {left}", _mark(group, left, number)
    while (left_seconds := deadline - time.monotonic()) > 0:
        listener.settimeout(left_seconds)
        try:
            link, _ = listener.accept()
        except TimeoutError:
            break
        with suppress(OSError, RanksUnusable):
            answer = _expect(link, _MARK_BYTES, name, min(deadline, time.monotonic() + 1.0))
            if hmac.compare_digest(answer, wanted):
                return link
        link.close()
    raise RanksUnusable(f"{name} did not come to {group.hosts[number]} in time: is it running?")


def _expect(link: socket.socket, count: int, name: str, deadline: float) -> bytes:
    """Return the next `count` bytes of the link. Raise RanksUnusable if they do not come."""
    received = b""
    while len(received) < count and (left_seconds := deadline - time.monotonic()) > 0:
        link.settimeout(left_seconds)
        with suppress(TimeoutError):
            more = link.recv(count - len(received))
            if not more:
                break
            received += more
    if len(received) < count:
        raise RanksUnusable(f"{name} ended while it joined")
    return received


def _address(host: str) -> tuple[str, int]:
    """Return IP, of version 4, and PORT. Raise RanksUnusable for what MLX would not read either."""
    ip, _, port = host.partition(":")
    if not port.isdecimal():
        raise RanksUnusable(f"{host!r} is no address of a rank: write IP:PORT")
    return ip, int(port)


@contextmanager
def _environment(group: RankGroup, number: int) -> Iterator[None]:
    """Within this block, set what MLX's back end reads in `init`. Afterwards it is gone: a child process must
    not join by it."""
    files: list[str] = []
    values = {"MLX_RANK": str(number)}
    try:
        match group.backend:
            case "ring":
                files.append(_written([[host] for host in group.hosts]))
                values["MLX_HOSTFILE"] = files[0]
            case "jaccl":
                files.append(_written([[name or None for name in names] for names in group.devices]))
                values |= {"MLX_IBV_DEVICES": files[0], "MLX_JACCL_COORDINATOR": group.hosts[0]}
            case "nccl":
                ip, port = _address(group.hosts[0])
                values |= {"NCCL_HOST_IP": ip, "NCCL_PORT": str(port), "MLX_WORLD_SIZE": str(group.ranks)}
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
    finally:
        for file in files:
            os.unlink(file)


def _written(content: list[list[str]] | list[list[str | None]]) -> str:
    descriptor, path = tempfile.mkstemp(prefix="penstock-ranks-", suffix=".json")
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    return path


@contextmanager
def _ended_after(seconds: float, group: RankGroup, number: int) -> Iterator[None]:
    """End the process if this block takes longer: Python cannot interrupt it."""
    print(f"rank {number} joins {', '.join(group.hosts)} by {group.backend}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
