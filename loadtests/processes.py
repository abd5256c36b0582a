"""Other processes of this machine, as `ps` and `lsof` report them: Linux and macOS.

If /proc exists, it is read only for what `ps` does not report (open files) or reports slowly.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from api.cli.process_table import ps
from scheduler.engine.budget.readings import MacMemory

_PROC = Path("/proc")


def children(pid: int, of: str = "") -> list[int]:
    """Return the children that have not ended, and whose command has `of` in it."""
    lines = (line.split(None, 3) for line in ps("-A", "-o", "pid=,ppid=,stat=,command=").splitlines())
    return [
        int(child)
        for child, parent, state, *command in lines
        if int(parent) == pid and not state.startswith("Z") and of in " ".join(command)
    ]


def engines(pid: int) -> list[int]:
    """Return a server's engine processes."""
    return children(pid, "scheduler.engine")


def is_gone(pid: int) -> bool:
    """Return whether there is no such process, or only a zombie."""
    state = ps("-p", str(pid), "-o", "stat=").strip()
    return not state or state.startswith("Z")


def of_process(pid: int) -> dict[str, float]:
    """Return the process's resident bytes, open files and threads. Raise OSError if it is gone."""
    return {
        "resident bytes": resident_bytes(pid),
        "open files": open_files(pid),
        "threads": threads(pid),
    }


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
