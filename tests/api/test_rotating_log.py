"""A log of bounded size, which loses no line and cuts none."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.rotating_log import RotatingLog


def test_files_are_bounded_and_the_newest_lines_are_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "p.log"
    log = RotatingLog(path, 100, 3)
    for number in range(100):
        log.write(b"line %03d\n" % number)
        if number == 50:  # A restart goes on in the same file.
            log.close()
            log = RotatingLog(path, 100, 3)
    log.close()
    files = [path.with_name("p.log.2"), path.with_name("p.log.1"), path]
    assert sorted(path.parent.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 100 for file in files)
    kept = b"".join(file.read_bytes() for file in files).decode().split("\n")[:-1]
    assert kept == [f"line {number:03}" for number in range(100 - len(kept), 100)]
    assert len(kept) > 20


def test_a_write_that_fails_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk must not take the service with it."""
    log = RotatingLog(tmp_path / "p.log", 10, 2)
    log.write(b"12345678\n")
    for name in ("p.log.1",):
        (tmp_path / name / "in the way").mkdir(parents=True)
    log.write(b"abcdefgh\n")
    log.write(b"x\n")
    log.close()
    assert "cannot write" in capsys.readouterr().err
