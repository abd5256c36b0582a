"""The machines of one engine's ranks, from a file as MLX's own tools write it.

`mlx.distributed_config --output` writes such files: `{"backend": ..., "hosts": [{"ssh": ..., "ips": [...],
"rdma": [...]}, ...]}`, or the list of hosts alone. Its `envs` are not used: an engine has its machine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Literal

import msgspec

from scheduler.errors import OptionError
from scheduler.shared.messages import MOST_RANKS, RankGroup

RING_PORT = 32320
"""Rank r listens on this port plus r for its neighbour."""
CONTROL_PORT = RING_PORT - 1
"""The port on which rank 0 accepts the other ranks."""


class _Host(msgspec.Struct):
    ssh: str
    ips: list[str] = []
    rdma: list[str | None] = []


class _File(msgspec.Struct):
    hosts: list[_Host]
    backend: str = ""


@dataclass(frozen=True, slots=True)
class RankHosts:
    """`machines`: by rank, the name and the addresses by which the file knows it."""

    machines: tuple[tuple[str, ...], ...]
    group: RankGroup

    @property
    def name(self) -> str:
        """Return a name of the engine for people: the names of its machines."""
        return " + ".join(names[0] for names in self.machines)

    def rank_of(self, host: str, address: str) -> int | None:
        """Return the rank of a machine that has joined by this name (`mac-1`, or `mac-1:1` for its second
        device) from this address, or None if the file has no such machine. A machine that the file lists
        several times has a device for each of its ranks, in their order."""
        machine, _, device = host.partition(":")
        known = {host, machine, machine.partition(".")[0], address}
        ranks = [rank for rank, names in enumerate(self.machines) if known.intersection(names)]
        unit = int(device) if device.isdecimal() else 0
        if not ranks:
            return None
        return ranks[unit] if unit < len(ranks) else ranks[0]


def read_rank_hosts(path: Path) -> RankHosts:
    """Read the file, and make a new token for the group. Raise OptionError, which names the file."""
    try:
        text = path.read_bytes()
        listed = text.lstrip().startswith(b"[")
        file = _File(msgspec.json.decode(text, type=list[_Host])) if listed else _decoded(text)
        return RankHosts(tuple((host.ssh, *host.ips) for host in file.hosts), _group(file))
    except (OSError, ValueError) as error:
        raise OptionError(f"--engines: {path}: {error}") from error


def _decoded(text: bytes) -> _File:
    return msgspec.json.decode(text, type=_File)


def _group(file: _File) -> RankGroup:
    """Return the group of these hosts. Raise ValueError if they cannot form one."""
    hosts = file.hosts
    if not 2 <= len(hosts) <= MOST_RANKS:
        raise ValueError(f"an engine has 2 to {MOST_RANKS} ranks, and this file {len(hosts)} hosts")
    if lacking := [host.ssh for host in hosts if not host.ips]:
        raise ValueError(f"{', '.join(lacking)} has no address in `ips`")
    backend = _backend(file)
    devices: tuple[tuple[str, ...], ...] = ()
    if backend == "jaccl":
        devices = tuple(tuple(name or "" for name in host.rdma) for host in hosts)
        if any(len(names) != len(hosts) for names in devices):
            raise ValueError("jaccl needs an RDMA device from each host to each other one in `rdma`")
    return RankGroup(
        len(hosts),
        backend,
        tuple(f"{host.ips[0]}:{RING_PORT + rank}" for rank, host in enumerate(hosts)),
        f"{hosts[0].ips[0]}:{CONTROL_PORT}",
        token_hex(32),
        devices,
    )


def _backend(file: _File) -> Literal["ring", "jaccl", "nccl"]:
    match file.backend or ("jaccl" if all(host.rdma for host in file.hosts) else "ring"):
        case "ring":
            return "ring"
        case "jaccl":
            return "jaccl"
        case "nccl":
            return "nccl"
        case other:
            raise ValueError(f"the backend is {other!r}, and not ring, jaccl or nccl")
