"""Check a model's safetensors files before any engine reads them, and name the one that is cut short or
missing.

Only lengths and headers are read, some KiB a file; the weights themselves are not. The headers also show how
much memory a model will take before it is loaded (`../fleet/memory_need.py`).
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.errors import StartupError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""The format's own bound."""
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`dtype` as safetensors spells it: F32, BF16, U32."""

    dtype: str
    elements: int
    nbytes: int


def tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return what the files of weights hold, by name. Raise StartupError for files that `check` refuses."""
    found: dict[str, StoredTensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        try:
            with path.open("rb") as file:
                (header_bytes,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
                header = json.loads(file.read(min(header_bytes, _MAX_HEADER_BYTES)))
            for name, entry in header.items():
                if name != "__metadata__":
                    start, end = entry["data_offsets"]
                    elements = math.prod(int(size) for size in entry["shape"])
                    found[name] = StoredTensor(str(entry["dtype"]), elements, int(end) - int(start))
        except (OSError, struct.error, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StartupError(f"--model: {path} cannot be read: {error!r}") from error
    return found


def check(folder: Path) -> None:
    """Raise StartupError if a file of weights in `folder` is missing, cut short, or no safetensors file."""
    try:
        for name in sorted(_indexed(folder)):
            if not (folder / name).exists():
                raise StartupError(f"--model: {folder} lacks {name}, which {INDEX} names: download it again")
        for path in sorted(folder.glob("model*.safetensors")):
            if (flaw := _flaw(path)) is not None:
                raise StartupError(f"--model: {path} {flaw}: download it again")
    except OSError as error:
        raise StartupError(f"--model: the weights in {folder} cannot be read: {error}") from error


def _indexed(folder: Path) -> set[str]:
    """Return the files that the index names; none if there is no index, which mlx-lm does not need."""
    try:
        content = json.loads((folder / INDEX).read_text("utf-8"))
        return {str(name) for name in content["weight_map"].values()}
    except FileNotFoundError:
        return set()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StartupError(f"--model: {folder / INDEX} is not an index of weights: {error!r}") from error


def _flaw(path: Path) -> str | None:
    """Return what is wrong with a file, as the end of a sentence."""
    size = path.stat().st_size
    if size < _LENGTH_BYTES:
        return f"is cut short: it has {size} bytes"
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
        if header_bytes > _MAX_HEADER_BYTES:
            return "is no safetensors file"
        if header_bytes > size - _LENGTH_BYTES:
            return f"is cut short: it has {size} bytes, and its header alone {header_bytes}"
        header = file.read(header_bytes)
    try:
        wanted = _LENGTH_BYTES + header_bytes + _data_bytes(json.loads(header))
    except (ValueError, TypeError, KeyError, AttributeError):
        return "is no safetensors file: its header is damaged"
    return None if size >= wanted else f"is cut short: it has {size} of {wanted} bytes"


def _data_bytes(header: dict[str, Any]) -> int:
    ends = (int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__")
    return max(ends, default=0)
