"""What is read of the operating system's memory, from folders as Linux shows them, and of our own peak."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from pathlib import Path

import pytest

from scheduler.engine.budget.readings import (
    LinuxMemory,
    MacMemory,
    host_memory,
    machine_bytes,
    restart_host_peak,
)
from scheduler.engine.device import Pressure, SystemMemory

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _write(root: Path, files: dict[str, str]) -> LinuxMemory:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return LinuxMemory(root)


def test_the_machine_s_available_memory_and_the_footprint(tmp_path: Path) -> None:
    read = _write(
        tmp_path,
        {
            "proc/self/statm": "9000 250 100 1 0 300 0",
            "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 700 kB\n",
        },
    )
    assert read() == SystemMemory(250 * _PAGE, 700 * 1024, Pressure.NORMAL)


def test_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    """Version 2: a limit may stand at any level. Inactive pages of files can be taken back."""
    group = "sys/fs/cgroup/farm"
    read = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/farm/engine\n",
            "proc/meminfo": "MemAvailable: 9000000 kB\n",
            f"{group}/memory.max": "5000000\n",
            f"{group}/memory.current": "4000000\n",
            f"{group}/memory.stat": "anon 3000000\ninactive_file 250000\n",
            f"{group}/engine/memory.max": "max\n",
            f"{group}/engine/memory.current": "4000000\n",
        },
    )
    assert read().available_bytes == 5_000_000 - 4_000_000 + 250_000
    assert machine_bytes(tmp_path) == 5_000_000


def test_groups_of_version_1(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/farm"
    read = _write(
        tmp_path,
        {
            "proc/self/cgroup": "5:devices:/\n4:memory:/farm\n0::/\n",
            f"{group}/memory.limit_in_bytes": "5000000\n",
            f"{group}/memory.usage_in_bytes": "4900000\n",
            f"{group}/memory.stat": "cache 9\ntotal_inactive_file 1000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
        },
    )
    assert read().available_bytes == 101_000


@pytest.mark.parametrize(
    ("some", "full", "pressure"),
    [(0.0, 0.0, Pressure.NORMAL), (12.5, 3.0, Pressure.WARN), (80.0, 40.0, Pressure.CRITICAL)],
)
def test_stalls_are_pressure(tmp_path: Path, some: float, full: float, pressure: Pressure) -> None:
    read = _write(
        tmp_path,
        {
            "proc/pressure/memory": f"some avg10={some} avg60=0.00 avg300=0.00 total=5\n"
            f"full avg10={full} avg60=0.00 avg300=0.00 total=1\n"
        },
    )
    assert read().pressure is pressure


def test_without_any_of_it_nothing_is_known(tmp_path: Path) -> None:
    assert _write(tmp_path, {})() == SystemMemory(0, None, Pressure.NORMAL)


class _LibSystem:
    """`proc_pid_rusage` of processes whose footprint is their id's thousandfold; 99 is another user's."""

    def proc_pid_rusage(self, pid: int, flavor: int, usage: ctypes.Array[ctypes.c_char]) -> int:
        if pid == 99:
            return -1
        # struct rusage_info_v0 of <sys/resource.h>: a UUID, seven fields that end with the resident set, the
        # footprint.
        usage.raw = struct.pack("16s10Q", b"", 1, 2, 3, 4, 5, 6, 7, pid * 1000, 9, 10)
        return 0


@pytest.mark.slow
def test_macos_says_the_footprint_of_any_process_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which `ps` does not: Metal's buffers are in no resident set."""
    memory = MacMemory()
    monkeypatch.setattr(memory, "_system", _LibSystem())
    assert (memory.footprint_bytes(41), memory.footprint_bytes(99)) == (41_000, None)


_BYTES = 64 << 20


def test_the_peak_is_that_since_it_was_restarted() -> None:
    if restart_host_peak() is None:
        pytest.skip("the system does not measure it")
    resident = host_memory().resident
    # Not from the C heap, which may have that much of freed memory.
    with mmap.mmap(-1, _BYTES) as held:
        held.write(b"x" * _BYTES)
        assert host_memory().peak - resident > _BYTES // 2
    again = restart_host_peak()
    assert again is not None
    assert host_memory().peak - again < _BYTES // 2
