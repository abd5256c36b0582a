"""The operating system's figures of memory: this process's footprint, what is left, and pressure.

Linux: `/proc`, pressure stalls (PSI) and the limits of all control groups around the process, of either
version. macOS: `phys_footprint` (what Activity Monitor calls memory) and the level of memorystatus; written
from Apple's headers, and we have run Linux only. Elsewhere nothing is known, which bounds nothing.

And this process's own peak of resident memory, and how to give freed memory back, with Linux and glibc: on a
CPU, NumPy and BLAS compute beside MLX, and its allocator does not count what they take.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.engine.device import Pressure, SystemMemory

_STALLED_PERCENT = 10.0
"""Percentage of the last ten seconds: if some task waited for memory for that long, the pressure is a
warning; if all tasks did, it is critical."""
_READ_BYTES = 1 << 16
_LARGEST_BYTES = 1 << 60
"""Control groups of version 1 spell "no limit" as a number beyond any memory."""


def system_reader() -> Callable[[], SystemMemory]:
    """Return the reader of this platform. A reading costs 0.1 ms or less."""
    match sys.platform:
        case "linux":
            return LinuxMemory()
        case "darwin":
            return MacMemory()
        case _:
            return SystemMemory


def machine_bytes(root: Path = Path("/")) -> int:
    """Return physical memory, or the least limit of a control group around this process."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for group in _groups(root) if (limit := group.limit_bytes()) is not None]
    return min([physical, *limits])


class LinuxMemory:
    """It is read between two steps, so it does nothing twice that does not change."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._meminfo, self._statm = root / "proc/meminfo", root / "proc/self/statm"
        self._stalls = root / "proc/pressure/memory"
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._groups = tuple(_groups(root))

    def __call__(self) -> SystemMemory:
        available = [room for group in self._groups if (room := group.available_bytes()) is not None]
        if (free := _fields(_read(self._meminfo)).get("MemAvailable")) is not None:
            available.append(free * 1024)
        return SystemMemory(self._footprint_bytes(), min(available, default=None), self._pressure())

    def _footprint_bytes(self) -> int:
        numbers = _read(self._statm).split()
        return int(numbers[1]) * self._page_bytes if len(numbers) > 1 else 0

    def _pressure(self) -> Pressure:
        """Return the pressure by the machine's stalls; a tight control group shows in what it has left."""
        stalled = dict.fromkeys(("some", "full"), 0.0)
        for line in _read(self._stalls).splitlines():
            kind, average, *_ = line.split()
            stalled[kind] = float(average.removeprefix("avg10="))
        if stalled["full"] >= _STALLED_PERCENT:
            return Pressure.CRITICAL
        return Pressure.WARN if stalled["some"] >= _STALLED_PERCENT else Pressure.NORMAL


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group that limits memory. Pages of files that were not used lately count as available, as the
    kernel takes them back before it kills."""

    limit: Path
    usage: Path
    statistics: Path
    inactive: str

    def limit_bytes(self) -> int | None:
        """Return None without a limit ("max")."""
        limit = _read(self.limit).strip()
        return int(limit) if limit.isdigit() and int(limit) < _LARGEST_BYTES else None

    def available_bytes(self) -> int | None:
        """Return None without a limit."""
        limit, usage = self.limit_bytes(), _read(self.usage).strip()
        if limit is None or not usage.isdigit():
            return None
        reclaimable = _fields(_read(self.statistics)).get(self.inactive, 0)
        return max(0, limit - int(usage) + reclaimable)


def _groups(root: Path) -> Iterator[_Group]:
    """Yield the process's group and all groups around it: each may have a limit."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _ancestors(root / "sys/fs/cgroup", path):
                yield _Group(
                    folder / "memory.max",
                    folder / "memory.current",
                    folder / "memory.stat",
                    "inactive_file",
                )
        elif "memory" in controllers.split(","):
            for folder in _ancestors(root / "sys/fs/cgroup/memory", path):
                yield _Group(
                    folder / "memory.limit_in_bytes",
                    folder / "memory.usage_in_bytes",
                    folder / "memory.stat",
                    "total_inactive_file",
                )


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """Yield the control groups. In a container the path may be that of the host, which is not mounted: then
    only the mount is left."""
    inside = Path(path.lstrip("/"))
    for part in (inside, *inside.parents):
        yield mount / part


def _read(path: Path) -> str:
    """Return the file's text, or an empty one. Not by `open`, which takes ten times as long: it prepares to
    decode, to seek and to buffer."""
    found = b""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        while more := os.read(file, _READ_BYTES):
            found += more
    except OSError:
        return ""
    finally:
        os.close(file)
    return found.decode("ascii", "replace")


def _fields(text: str) -> dict[str, int]:
    """Return the numbers by name in lines of "name: number" or "name number"."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        parts = line.replace(":", " ").split()
        if len(parts) > 1 and parts[1].isdigit():
            found[parts[0]] = int(parts[1])
    return found


_FLAVOR = 0
"""RUSAGE_INFO_V0, which has the footprint as every later version has."""
_FOOTPRINT_AT = 16 + 7 * 8
"""`ri_phys_footprint` in `struct rusage_info_v0`: behind a UUID and seven 64-bit fields."""
_USAGE_BYTES = 16 + 10 * 8
_LEVELS = {1: Pressure.NORMAL, 2: Pressure.WARN, 4: Pressure.CRITICAL}


class MacMemory:
    """Memory on macOS, which has no dependable figure of what is left: it compresses and swaps first, and its
    pressure level shows that."""

    def __init__(self) -> None:
        self._system = ctypes.CDLL(ctypes.util.find_library("System"))

    def __call__(self) -> SystemMemory:
        return SystemMemory(self.footprint_bytes(os.getpid()) or 0, None, self._pressure())

    def footprint_bytes(self, pid: int) -> int | None:
        """Return the footprint of any process of this user. Metal's buffers are in it, which the resident set
        leaves out. Return None if the process is gone, or another user's."""
        usage = ctypes.create_string_buffer(_USAGE_BYTES)
        if self._system.proc_pid_rusage(pid, _FLAVOR, usage) != 0:
            return None
        return int.from_bytes(usage.raw[_FOOTPRINT_AT : _FOOTPRINT_AT + 8], sys.byteorder)

    def _pressure(self) -> Pressure:
        level, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        name = b"kern.memorystatus_vm_pressure_level"
        if self._system.sysctlbyname(name, ctypes.byref(level), ctypes.byref(size), None, 0) != 0:
            return Pressure.NORMAL
        return _LEVELS.get(level.value, Pressure.NORMAL)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_M_MMAP_THRESHOLD = -3
"""A parameter of `mallopt` in `malloc.h`."""
_LARGE_BLOCK_BYTES = 1 << 20
_RESET_PEAK = "5"
"""See proc(5): the resident set's high water mark becomes its present size."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The host's memory in bytes; 0 where the system does not report it."""

    resident: int = 0
    peak: int = 0
    """The peak since the process started, or since `restart_host_peak`."""


def host_memory() -> HostMemory:
    found = {"VmRSS": 0, "VmHWM": 0}
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return HostMemory(found["VmRSS"], found["VmHWM"])


def restart_host_peak() -> int | None:
    """Measure the peak from here. Return what is resident, or None where that is not possible."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return None
    return host_memory().resident


def return_free_blocks() -> None:
    """Return the C heap's free memory to the system, and map each large block separately from now on, so that
    it returns when it is freed; with other allocators, nothing.

    Otherwise glibc keeps freed blocks of up to 32 MB: beside 120 MB of arrays an engine held 460 MB. Only
    called when memory is short, for each new mapping costs page faults.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        libc.malloc_trim(0)
