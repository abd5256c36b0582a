"""One engine on one device: who waits, who is refused by name, and when the device is free again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.engine.join.joining import DeviceBusy, lock_device


def lock(folder: Path, device: str = "0", holder: str = "process 7", seconds: float = 0.0) -> int:
    return lock_device(device, "mac-2", folder, holder, seconds)


def test_the_second_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    first = lock(tmp_path, holder="process 7, an engine of the server at front:9000")
    with pytest.raises(DeviceBusy) as refused:
        lock(tmp_path)
    assert refused.value.held and str(refused.value) == (  # noqa: PT018 (one refusal)
        "device '0' of mac-2 is in use by process 7, an engine of the server at front:9000"
    )
    os.close(first)
    os.close(lock(tmp_path))


def test_devices_are_locked_one_by_one(tmp_path: Path) -> None:
    """By machine, too: a home folder may be shared."""
    taken = [lock(tmp_path, "0"), lock(tmp_path, "1"), lock_device("0", "mac-3", tmp_path, "", 0)]
    for one in taken:
        os.close(one)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("a file")
    with pytest.raises(DeviceBusy, match=r"cannot be locked: .*devices") as busy:
        lock(tmp_path)
    assert not busy.value.held
