"""Wheels in numbered folders of a bounded size, a large wheel in several parts, with SHA-256 sums of all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

SUMS = "SHA256SUMS"


def cut(wheels: Iterable[Path], folder: Path, most_bytes: int) -> int:
    """Fill the folders `1`, `2`, … with at most `most_bytes` each, in the order of the wheels, and return how
    many there are. A wheel that does not fit into what is left of one is cut: `NAME.whl.1-of-3`, …"""
    number, room = 1, most_bytes
    for wheel in wheels:
        size = wheel.stat().st_size
        lengths: list[int] = []
        while left := size - sum(lengths):
            if not room:
                number, room = number + 1, most_bytes
            lengths.append(min(left, room))
            room -= lengths[-1]
        _write(wheel, lengths, folder, number - len(lengths) + 1)
    return number


def _write(wheel: Path, lengths: list[int], folder: Path, first: int) -> None:
    with wheel.open("rb") as source:
        for at, length in enumerate(lengths):
            part = wheel.name if len(lengths) == 1 else f"{wheel.name}.{at + 1}-of-{len(lengths)}"
            place = folder / str(first + at)
            place.mkdir(parents=True, exist_ok=True)
            (place / part).write_bytes(source.read(length))


def write_sums(folder: Path) -> None:
    """Write the sums of all files of the kit, as `sha256sum -c SHA256SUMS` reads them."""
    (folder / SUMS).write_text("".join(f"{sum_}  {name}\n" for name, sum_ in _sums(folder)), encoding="utf-8")


def _sums(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS):
        with path.open("rb") as file:
            yield path.relative_to(folder).as_posix(), hashlib.file_digest(file, "sha256").hexdigest()
