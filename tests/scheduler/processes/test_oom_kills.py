"""The kernel's count of processes that it killed for lack of memory, as its files have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.processes.child_process import oom_kills

MACHINE = {"proc/vmstat": "nr_free_pages 7\noom_kill 5\n"}
V2 = {"proc/self/cgroup": "0::/penstock\n", "sys/fs/cgroup/penstock/memory.events": "oom 3\noom_kill 2\n"}


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, 0),
        (MACHINE, 5),
        (MACHINE | {"proc/self/cgroup": "0::/\n"}, 5),
        (MACHINE | V2, 2),
        (MACHINE | V2 | {"sys/fs/cgroup/penstock/memory.events": "oom_group_kill 4\n"}, 5),
    ],
)
def test_the_count_of_the_group_goes_before_that_of_the_machine(
    files: dict[str, str], kills: int, tmp_path: Path
) -> None:
    """Nothing that is missing or cut raises."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == kills
