"""What is checked and measured at load, kept between starts: one small file for each model, versions and
options.

A verdict depends on the model's architecture and on the software, not on the weights' values, so the key is
made from `config.json`, not from gigabytes of weights. A file that cannot be read or written costs another
check and nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

from scheduler.engine.mlx.batching import Batching

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What an earlier load found. `group_cost_tokens` is None if nothing could be measured
    (`group_cost.py`)."""

    batching: Batching
    group_cost_tokens: int | None = None


def verdict_key(config: bytes, *parts: str) -> str:
    """Return 32 hex digits. `parts`: versions, device, dtype, options: all that a verdict depends on."""
    digest = blake2b(digest_size=16)
    for part in (config, *(part.encode() for part in parts)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


class KeptVerdicts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str, kind: type[_T]) -> _T | None:
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, key: str, kept: object) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            half = self._folder / f"{key}.{os.getpid()}"
            half.write_bytes(msgspec.json.encode(kept))
            half.replace(self._path(key))
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
