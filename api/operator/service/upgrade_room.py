"""Whether two engines fit beside each other during an upgrade: the numbers, and what follows from them."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

_SECONDS = 5.0
_GIB = 1 << 30
_ON_MAC = bool(sys.platform == "darwin")
_LINE = re.compile(r"(penstock_\w+)(?:\{(.*)\})? (\S+)")


@dataclass(frozen=True, slots=True)
class Engines:
    """What the running engines report, all together."""

    weights_bytes: int
    cache_bytes: int
    """Keys and values of rows and prefixes."""
    on_own_memory: bool
    """A GPU with memory of its own: the machine's says nothing about it."""


@dataclass(frozen=True, slots=True)
class Room:
    fits: bool
    text: str


def room(engines: Engines | None, available_bytes: int | None, unit_left_bytes: int | None) -> Room:
    """Judge the numbers. `available_bytes`: of the machine; `unit_left_bytes`: up to the unit's bound. What
    is not known is no reason to refuse."""
    if engines is None:
        return Room(True, "the server's metrics do not answer: how much memory it holds is not known")
    need = engines.weights_bytes
    held = f"the engines hold {_gib(need)} of weights and {_gib(engines.cache_bytes)} of cache"
    if engines.on_own_memory:
        return Room(True, f"{held} on their GPU, which must have room for the weights a second time")
    left = [("available", available_bytes), ("left below the unit's limit", unit_left_bytes)]
    known = [(what, size) for what, size in left if size is not None]
    if not known:
        return Room(True, f"{held}; the machine's free memory is not known")
    what, least = min(known, key=lambda pair: pair[1])
    needs = f"the new ones need the weights a second time, and {_gib(least)} are {what}"
    return Room(need <= least, f"{held}; {needs}")


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def engines_of(metrics: str) -> Engines:
    """Read the text of /metrics."""
    totals: dict[str, float] = {}
    devices = []
    for line in metrics.splitlines():
        if found := _LINE.fullmatch(line):
            totals[found[1]] = totals.get(found[1], 0.0) + float(found[3])
            if found[1] == "penstock_model_info":
                devices += re.findall(r'device="([^"]*)"', found[2] or "")
    cache = totals.get("penstock_kv_bytes", 0) + totals.get("penstock_prefix_bytes", 0)
    own = not _ON_MAC and any(re.match(r"(gpu|cuda)", one) for one in devices)
    return Engines(int(totals.get("penstock_weights_bytes", 0)), int(cache), own)


def fetch_engines(url: str) -> Engines | None:
    """Ask a running server; None if it does not answer."""
    try:
        answer = httpx.get(f"{url}/metrics", timeout=_SECONDS, trust_env=False)
    except httpx.HTTPError:
        return None
    return engines_of(answer.text) if answer.status_code == 200 else None


def available_bytes() -> int | None:
    """Memory that programs can get without swapping anything out; None: not known."""
    with suppress(OSError, ValueError, subprocess.SubprocessError, StopIteration):
        if not _ON_MAC:
            lines = Path("/proc/meminfo").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        said = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=_SECONDS, check=True)
        return mac_available_bytes(said.stdout)
    return None


def mac_available_bytes(vm_stat: str) -> int:
    """Read what `vm_stat` prints. Raise ValueError."""
    size = re.search(r"page size of (\d+) bytes", vm_stat)
    pages = dict(re.findall(r"^Pages (free|inactive|purgeable|speculative):\s+(\d+)\.", vm_stat, re.M))
    if size is None or "free" not in pages:
        raise ValueError("vm_stat prints something else")
    return int(size[1]) * sum(map(int, pages.values()))


def tree_bytes(root: int) -> int | None:
    """Resident bytes of a process and all that it started; None: not known."""
    try:
        said = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,rss="],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return tree_of(said.stdout, root)


def tree_of(ps: str, root: int) -> int:
    """Add up the lines `pid parent kilobytes` of a process and its descendants."""
    lines = [tuple(map(int, line.split())) for line in ps.splitlines() if len(line.split()) == 3]
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for pid, parent, kilobytes in lines:
        children.setdefault(parent, []).append(pid)
        sizes[pid] = kilobytes * 1024
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += sizes.get(pid, 0)
        waiting += children.get(pid, [])
    return total
