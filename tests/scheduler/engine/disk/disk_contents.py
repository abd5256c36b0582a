"""Contents for the disk tier's tests: derived from the place, so that a wrong one shows immediately."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import shake_128
from pathlib import Path

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Place
from scheduler.engine.disk.block_file import Content, HostArray, encode
from scheduler.engine.disk.disk_folder import LOCK
from scheduler.engine.disk.disk_tier import DiskTier, ReadOutcome

MODEL = "5e" * 32
"""A fingerprint."""
PLENTY = 10**9
"""Bytes: a budget with room for all that a test writes."""
SOON = 20.0
"""Seconds within which anything ends, on any machine that runs tests."""

LONG_AGO = 1e9
"""A time of modification: the copy is finished."""


def content_of(place: Place, rows: int = 1) -> Content:
    """Two layers and a flag, of sizes that need care with alignment; and a place of its own to be recognised
    by."""
    key = place.key
    return Content(
        {
            "layers.0.keys": HostArray("BF16", (2, rows, 3), shake_128(key + b"keys").digest(12 * rows)),
            "layers.0.values": HostArray("F32", (rows, 5), shake_128(key + b"values").digest(20 * rows)),
            "is full": HostArray("BOOL", (3,), bytes(3)),
            "nothing": HostArray("U8", (0, 4), b""),
        },
        {"place": place.file_name, "offsets": [place.position, None]},
    )


def spelt(letters: str, more: int = 0) -> list[int]:
    """A block of tokens for each letter, and the beginning of one more."""
    return [ord(letter) for letter in letters for _ in range(BLOCK_TOKENS)] + [0] * more


def put_all(tier: DiskTier, chain: Chain, rows: int = 1) -> bool:
    """Hand over every whole block of the chain; whether all were taken."""
    ends = range(BLOCK_TOKENS, chain.tokens + 1, BLOCK_TOKENS)
    taken = [tier.put_block_nowait(chain, end, content_of(chain.block(end), rows)) for end in ends]
    return all(taken)


def put_snapshot(tier: DiskTier, chain: Chain, position: int) -> bool:
    return tier.put_snapshot_nowait(chain, position, content_of(chain.snapshot(position)))


def read_all(tier: DiskTier, chain: Chain) -> ReadOutcome:
    return tier.start_read(chain, 0, chain.tokens).result(SOON)


def files_in(folder: Path) -> dict[str, Path]:
    """All files in it, by name, but the lock's."""
    return {file.name: file for file in folder.iterdir() if file.is_file() and file.name != LOCK}


def weight_of(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


_PLACE = Chain(MODEL, "", spelt("a")).block(BLOCK_TOKENS)
SIZE = sum(len(part) for part in encode(content_of(_PLACE), _PLACE, MODEL))
"""Every file that these tests write has this size, up to three blocks."""


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
