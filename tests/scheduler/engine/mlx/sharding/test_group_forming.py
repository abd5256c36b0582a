"""Ranks that do not come are named, within a deadline; strangers are no ranks."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import msgspec
import pytest

from scheduler.engine.mlx.sharding.group_forming import form_group, meet
from scheduler.engine.mlx.sharding.rank import Rank, RanksUnusable
from tests.scheduler.engine.mlx.sharding.ranks import Ranks, ring

OURS = ("MLX_ENABLE_TF32",)
"""What the engine sets for every model (`mlx/environment.py`)."""
_HERE = "tests.scheduler.engine.mlx.sharding.test_group_forming"


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_are_there_meet(ranks: int) -> None:
    """Afterwards nothing listens on their addresses, which are MLX's then."""
    group = ring(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(lambda number: meet(group, number, 20.0), range(ranks)))
    for host in group.hosts:
        ip, _, port = host.partition(":")
        socket.create_server((ip, int(port))).close()


@pytest.mark.parametrize(("number", "missing"), [(0, 1), (1, 0)])
def test_a_rank_that_does_not_come_is_named(number: int, missing: int) -> None:
    with pytest.raises(RanksUnusable, match=f"rank {missing} .*did not come"):
        meet(ring(), number, 0.3)


def test_macos_may_be_why_a_rank_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(RanksUnusable, match="Local Network"):
        meet(ring(), 0, 0.3)


def test_a_rank_that_is_dialled_and_does_not_dial_is_named() -> None:
    group = ring()
    ip, _, port = group.hosts[1].partition(":")
    with (
        socket.create_server((ip, int(port))),
        pytest.raises(RanksUnusable, match=r"rank 1 did not come to 127\.0\.0\.1"),
    ):
        meet(group, 0, 0.3)


def test_a_stranger_is_no_rank() -> None:
    """One that says nothing, and ranks of a group with another token: the right ones meet beside them."""
    group = ring()
    strangers = msgspec.structs.replace(
        group, token="of another group", hosts=ring().hosts[:1] + group.hosts[1:]
    )
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(meet, group, 0, 20.0)
        stranger = pool.submit(meet, strangers, 0, 1.5)
        silent = _dialled(group.hosts[0])
        second = pool.submit(meet, group, 1, 20.0)
        first.result()
        second.result()
        silent.close()
        with pytest.raises(RanksUnusable):
            stranger.result()


def _dialled(host: str) -> socket.socket:
    ip, _, port = host.partition(":")
    for _ in range(200):
        try:
            return socket.create_connection((ip, int(port)))
        except OSError:
            time.sleep(0.01)
    raise AssertionError(f"nothing listens on {host}")


def test_an_address_of_another_machine_is_refused() -> None:
    group = msgspec.structs.replace(ring(), hosts=("192.0.2.1:5000", "127.0.0.1:5000"))
    with pytest.raises(RanksUnusable, match=r"cannot listen on 192\.0\.2\.1:5000"):
        meet(group, 0, 0.3)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:", "::1", "127.0.0.1:x"])
def test_what_is_no_address_is_refused(host: str) -> None:
    group = msgspec.structs.replace(ring(), hosts=(host, "127.0.0.1:5000"))
    with pytest.raises(RanksUnusable, match="no address of a rank"):
        meet(group, 0, 0.3)


@pytest.mark.parametrize("backend", ["nccl", "jaccl"])
def test_a_back_end_that_mlx_lacks_is_refused(backend: Any) -> None:
    """MLX's CPU build on Linux has neither: both want other hardware."""
    with pytest.raises(RanksUnusable, match=f"no back end {backend}"):
        form_group(msgspec.structs.replace(ring(), backend=backend), 0, 0.3)


def test_too_few_addresses_are_refused() -> None:
    with pytest.raises(RanksUnusable, match="rank 1 of 2, with addresses of 1"):
        form_group(msgspec.structs.replace(ring(), hosts=("127.0.0.1:5000",)), 1, 0.3)


_LOST = """
import sys, msgspec
from scheduler.engine.mlx.sharding import group_forming
from scheduler.shared.messages import RankGroup
group_forming._INIT_SECONDS = 0.5
group_forming.form_group(msgspec.json.decode(sys.argv[1], type=RankGroup), 0, 60.0)
"""


def test_a_rank_that_is_lost_after_it_was_met_ends_the_process() -> None:
    """MLX waits for it with Python's global lock held: no exception could be raised, and nothing be sent."""
    group = ring()
    command = [sys.executable, "-c", _LOST, msgspec.json.encode(group).decode()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        meet(group, 1, 60.0)
        _, error = process.communicate(timeout=60.0)
    assert process.returncode == 1
    assert f"rank 0 joins {', '.join(group.hosts)} by ring" in error
    assert "Timeout" in error


def run(rank: Rank) -> list[Any]:
    """Join; what the environment has of it then."""
    joined = form_group(rank.group, rank.number)
    return [
        joined.rank(),
        joined.size(),
        sorted(name for name in os.environ if name.startswith("MLX_") and name not in OURS),
    ]


def test_joined_ranks_know_their_numbers_and_leave_no_environment() -> None:
    """A process that one of them starts must not take itself for a rank."""
    ranks = Ranks(3)
    try:
        assert ranks.play(_HERE, seconds=60.0) == [[number, 3, []] for number in range(3)]
    finally:
        ranks.close()
