"""A control group with little memory, of either version; Linux, and who may make one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")
_REMOVALS, _REMOVAL_SECONDS = 50, 0.1


@dataclass(frozen=True, slots=True)
class ControlGroup:
    folder: Path
    limit_file: str

    def limit(self, most_bytes: int) -> None:
        (self.folder / self.limit_file).write_text(str(most_bytes))

    @property
    def processes(self) -> Path:
        """A process whose id is written here is in the group, with all that it starts from then on."""
        return self.folder / "cgroup.procs"


@contextmanager
def control_group() -> Iterator[ControlGroup | None]:
    """None where none can be made."""
    name = f"penstock-test-{os.getpid()}"
    version_1 = (_VERSION_1 / "memory.limit_in_bytes").exists()
    group = ControlGroup(
        (_VERSION_1 if version_1 else _VERSION_2) / name,
        "memory.limit_in_bytes" if version_1 else "memory.max",
    )
    try:
        group.folder.mkdir()
    except OSError:
        yield None
        return
    try:
        yield group if (group.folder / group.limit_file).exists() else None
    finally:
        _remove(group.folder)


def _remove(folder: Path) -> None:
    """A process may still be ending in it."""
    for _ in range(_REMOVALS):
        try:
            folder.rmdir()
        except OSError:
            time.sleep(_REMOVAL_SECONDS)
        else:
            return
