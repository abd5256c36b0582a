"""Other processes of this machine, as `ps` and `lsof` report them: Linux and macOS.

If /proc exists, it is read only for what `ps` does not report (open files) or reports slowly.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scheduler.engine.budget.readings import MacMemory

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of `ps`."""

    pid: int
    parent: int
    group: int
    state: str
    command: str


def ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout


def processes() -> list[Process]:
    """Return all processes, including zombies."""
    # -ww: macOS cuts commands at 80 columns if there is no terminal.
    lines = ps("-A", "-ww", "-o", "pid=,ppid=,pgid=,stat=,command=").splitlines()
    found = (line.split(None, 4) for line in lines)
    return [Process(int(one[0]), int(one[1]), int(one[2]), one[3], "".join(one[4:])) for one in found]


def tree(root: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    found, table = [root], processes()
    for parent in found:
        found += [one.pid for one in table if one.parent == parent]
    return found


def children(pid: int, of: str = "") -> list[int]:
    """Return the children that have not ended, and whose command has `of` in it."""
    alive = (one for one in processes() if one.parent == pid and one.state[0] != "Z")
    return [one.pid for one in alive if of in one.command]


def engines(pid: int) -> list[int]:
    """Return a server's engine processes."""
    return children(pid, "scheduler.engine")


def is_gone(pid: int) -> bool:
    """Return whether there is no such process, or only a zombie."""
    state = ps("-p", str(pid), "-o", "stat=").strip()
    return not state or state.startswith("Z")


def of_process(pid: int) -> dict[str, float]:
    """Return the process's resident bytes, open files and threads. Raise OSError if it is gone."""
    return {"resident bytes": resident_bytes(pid), "open files": open_files(pid), "threads": threads(pid)}


def resident_bytes(pid: int) -> int:
    """Return the resident set; on macOS the footprint, for Metal's buffers are in no resident set. Raise
    OSError if the process is gone."""
    if sys.platform == "darwin":
        if (footprint := MacMemory().footprint_bytes(pid)) is None:
            raise ProcessLookupError(pid)
        return footprint
    else:
        return int(_of(pid, "rss=")) * 1024


def threads(pid: int) -> int:
    """Return the number of threads. Raise OSError if the process is gone."""
    if sys.platform == "darwin":
        # A header and one line for each thread, as ps on macOS has no column for the number. The header is
        # printed for a process that is gone, too.
        if not (lines := ps("-M", "-p", str(pid)).splitlines()[1:]):
            raise ProcessLookupError(pid)
        return len(lines)
    else:
        return int(_of(pid, "nlwp="))


def environment(pid: int) -> str:
    """Return its command and initial environment variables. Raise OSError if it is gone."""
    if not (line := ps("eww", "-p", str(pid), "-o", "command=").strip()):
        raise ProcessLookupError(pid)
    return line


def open_files(pid: int) -> int:
    """Return the number of open descriptors."""
    folder = _PROC / str(pid) / "fd"
    return len(list(folder.iterdir())) if _PROC.is_dir() else open_files_by_lsof(pid)


def open_files_by_lsof(pid: int) -> int:
    """Return the number of open descriptors, without /proc. Raise OSError if the process is gone."""
    command = ["lsof", "-p", str(pid), "-Ff"]
    open_files = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if not open_files:
        raise ProcessLookupError(pid)
    # Descriptors are f3, f4, ...; entries of other kinds (the program, libraries) have letters.
    return sum(line[:1] == "f" and line[1:].isdigit() for line in open_files.splitlines())


def _of(pid: int, column: str) -> str:
    if not (value := ps("-p", str(pid), "-o", column).strip()):
        raise ProcessLookupError(pid)
    return value
