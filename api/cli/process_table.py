"""All processes of this machine, as `ps` reports them: Linux and macOS."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """One line of `ps`."""

    pid: int
    parent: int
    group: int
    command: str


def processes() -> list[Process]:
    """Return all processes, including zombies."""
    # -ww: macOS cuts commands at 80 columns if there is no terminal.
    lines = ps("-A", "-ww", "-o", "pid=,ppid=,pgid=,command=").splitlines()
    found = (line.split(None, 3) for line in lines)
    return [Process(int(one[0]), int(one[1]), int(one[2]), "".join(one[3:])) for one in found]


def tree(root: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    found, table = [root], processes()
    for parent in found:
        found += [one.pid for one in table if one.parent == parent]
    return found


def ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout
