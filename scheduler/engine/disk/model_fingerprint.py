"""The fingerprint of a model: a digest over everything that the same tokens' state depends on.

Called once at load, in a thread beside the loading of the weights, which reads the same bytes. (For copies on
several machines there is another, `portable_fingerprint`.) A wrong "same"
gives wrong tokens; a wrong "different" costs a cold cache. So names, sizes and contents count, and times only
if there is too much content to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from scheduler.engine.disk.block_chain import BLOCK_TOKENS

_PIECE_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 16
_STRIDE_BYTES = 1 << 24
_HEADER_BYTES = 1 << 26  # More than any safetensors header.


def fingerprint(
    folder: Path, weights_dtype: str, adapter: Path | None, software: str, *, whole_bytes: int = 4 << 30
) -> str:
    """Return 64 hex digits for the model in `folder` as the engine runs it. Raise OSError if a file cannot be
    read.

    `weights_dtype`: the type that load converts weights to, resolved (never "auto"). `adapter`: a folder or a
    file. `software`: versions of mlx-lm and of everything else that computes, and the device.

    Up to `whole_bytes` of weights, every byte counts (a second a GB). Beyond, of each weights file: its
    safetensors header, 64 KiB of every 16 MiB, its end, and its times of modification and of change. No
    program can set back the latter, so that an edit between the samples is noticed, too; a copy of a large
    model counts as another model.
    """
    digest = blake2b(digest_size=32)
    for part in (f"blocks of {BLOCK_TOKENS}", weights_dtype, software):
        _add(digest, part.encode())
    model = sorted(file for pattern in ("*.json", "*.py") for file in folder.glob(pattern))
    weights = sorted(folder.glob("*.safetensors"))
    whole = sum(file.stat().st_size for file in weights) <= whole_bytes
    _add_files(digest, (file for file in model if _shapes_the_model(file)), whole=True)
    _add_files(digest, weights, whole=whole)
    if adapter is not None:
        parts = sorted(adapter.iterdir()) if adapter.is_dir() else [adapter]
        _add_files(digest, (part for part in parts if part.is_file()), whole=True)
    return digest.hexdigest()


def portable_fingerprint(folder: Path) -> str:
    """Return 64 hex digits for the model in `folder`, the same on every machine that has a copy of it, in
    less than a second: config.json, the model's own code, the tokenizer, and of each weights file its header
    and 64 KiB of every 16 MiB. Raise OSError if a file cannot be read.

    For machines that should have the same model: it finds another one, not an edit between the samples.
    """
    digest = blake2b(digest_size=32)
    model = sorted(file for pattern in ("*.json", "*.py") for file in folder.glob(pattern))
    kept = (file for file in model if _shapes_the_model(file) or file.name == "tokenizer.json")
    _add_files(digest, kept, whole=True)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for part in (path.name.encode(), f"{size}".encode(), _samples(file, size)):
                _add(digest, part)
    return digest.hexdigest()


def _shapes_the_model(file: Path) -> bool:
    """config.json (the quantisation is in it) and a model's own code. Not the tokenizer's files: states
    belong to token ids. Nor the weights' index: it repeats the weights."""
    return file.suffix == ".py" or file.name == "config.json"


def _add(digest: blake2b, part: bytes) -> None:
    """Preceded by its length: no two lists of parts give the same bytes."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


def _add_files(digest: blake2b, files: Iterable[Path], *, whole: bool) -> None:
    for path in files:
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            _add(digest, path.name.encode())
            _add(digest, f"{status.st_size}".encode())
            if whole:
                _add(digest, _contents(file))
            else:
                _add(digest, f"{status.st_mtime_ns} {status.st_ctime_ns}".encode())
                _add(digest, _samples(file, status.st_size))
    _add(digest, b"")  # Ends one group of files.


def _contents(file: BinaryIO) -> bytes:
    contents = blake2b()
    while piece := file.read(_PIECE_BYTES):
        contents.update(piece)  # Releases the GIL.
    return contents.digest()


def _samples(file: BinaryIO, size: int) -> bytes:
    contents = blake2b()
    header = 8 + int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
    contents.update(os.pread(file.fileno(), min(header, _HEADER_BYTES), 0))
    for start in (*range(0, size, _STRIDE_BYTES), max(0, size - _SAMPLE_BYTES)):
        contents.update(os.pread(file.fileno(), _SAMPLE_BYTES, start))
    return contents.digest()
