"""MLX's host files, and whether the machines in them are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.cluster.rank_hosts import CONTROL_PORT, RING_PORT, RankHosts, read_rank_hosts
from scheduler.errors import OptionError

_PAIR: list[dict[str, Any]] = [
    {"ssh": "mac-1", "ips": ["10.1.0.1"], "rdma": []},
    {"ssh": "mac-2", "ips": ["10.1.0.2", "10.2.0.2"], "rdma": []},
]
_RDMA: list[dict[str, Any]] = [
    {"ssh": "mac-1", "ips": ["10.1.0.1"], "rdma": [None, "rdma_en2"]},
    {"ssh": "mac-2", "ips": ["10.1.0.2"], "rdma": ["rdma_en3", None]},
]


def _read(folder: Path, content: Any) -> RankHosts:
    path = folder / "hosts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_rank_hosts(path)


@pytest.mark.parametrize("content", [_PAIR, {"backend": "ring", "envs": ["A=b"], "hosts": _PAIR}])
def test_both_forms_of_the_file_are_a_ring(tmp_path: Path, content: Any) -> None:
    group = _read(tmp_path, content).group
    assert (group.ranks, group.backend, group.devices) == (2, "ring", ())
    assert group.hosts == (f"10.1.0.1:{RING_PORT}", f"10.1.0.2:{RING_PORT + 1}")
    assert group.control == f"10.1.0.1:{CONTROL_PORT}"
    assert len(bytes.fromhex(group.token)) == 32


def test_devices_on_each_host_are_jaccl(tmp_path: Path) -> None:
    group = _read(tmp_path, _RDMA).group
    assert (group.backend, group.devices) == ("jaccl", (("", "rdma_en2"), ("rdma_en3", "")))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "Input data was truncated"),
        ({"hosts": "mac-1"}, "Expected `array`"),
        ([{"ips": []}], "missing required field `ssh`"),
        (_PAIR[:1], "2 to 64 ranks, and this file 1 hosts"),
        ([_PAIR[0], {"ssh": "mac-3"}], "mac-3 has no address"),
        ({"backend": "mpi", "hosts": _PAIR}, "the backend is 'mpi'"),
        ({"backend": "jaccl", "hosts": _PAIR}, "jaccl needs an RDMA device"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, content: Any, why: str) -> None:
    with pytest.raises(OptionError) as refused:
        _read(tmp_path, content)
    assert str(refused.value).startswith(f"--engines: {tmp_path}/hosts.json: ")
    assert why in str(refused.value)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.json"):
        read_rank_hosts(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("host", "address"),
    [("mac-2", ""), ("mac-2.local", ""), ("x", "10.2.0.2"), ("10.1.0.2", ""), ("mac-2:0", "")],
)
def test_each_rank_is_on_its_machine(tmp_path: Path, host: str, address: str) -> None:
    """By its name, with a domain or without, or an address of it."""
    hosts = _read(tmp_path, _PAIR)
    assert hosts.rank_of(host, address) == 1
    assert hosts.rank_of("mac-1", "192.168.0.9") == 0
    assert hosts.rank_of("mac-7", "192.168.0.9") is None
    assert hosts.name == "mac-1 + mac-2"


def test_two_ranks_on_one_machine_have_a_device_each(tmp_path: Path) -> None:
    hosts = _read(tmp_path, [{"ssh": "mac-1", "ips": ["10.1.0.1"]}] * 2)
    assert [hosts.rank_of(host, "10.1.0.1") for host in ("mac-1", "mac-1:1")] == [0, 1]
