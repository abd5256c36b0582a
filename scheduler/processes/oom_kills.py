"""How often the kernel has killed a process of this control group or machine for lack of memory.

A SIGKILL does not show who sent it; a count that grew while the engine lived means that it was the kernel.
macOS counts nothing that a process may read: its kills look like an operator's there.
"""

from __future__ import annotations

from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int:
    """Return the count of this process's control group, or of the machine where its group has none; 0 where
    the system does not count."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            events = root / "sys/fs/cgroup" / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            events = root / "sys/fs/cgroup/memory" / path.lstrip("/") / "memory.oom_control"
        else:
            continue
        if (kills := _count(_read(events))) is not None:
            return kills
    return _count(_read(root / "proc/vmstat")) or 0


def _count(text: str) -> int | None:
    found = (line.split() for line in text.splitlines())
    return next((int(words[1]) for words in found if len(words) == 2 and words[0] == "oom_kill"), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
