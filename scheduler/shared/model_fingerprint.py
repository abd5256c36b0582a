"""The fingerprint of a model: a digest over every byte that the same tokens' state depends on.

A wrong "same" gives wrong tokens: on an engine of another machine, and from the disk tier. A wrong
"different" costs a cold cache or a start. So no byte is left out, and gigabytes are read once: each weights
file's digest is kept under its attributes in the folder, and the file is read again when any of that has
changed.

The hub's own checksum, by which its cache names a file, is not taken: the name stays when a program writes
through the snapshot's link, and a download checks it only if it was asked to.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import msgspec

from scheduler.errors import StartupError
from scheduler.shared.folder.weight_files import PATTERN, read_weights

_SHAPING = ("tokenizer.json", "*.py")
"""The tokenizer, by which grammars mask tokens, and a model's own code; beside weights also their
configuration (the quantisation is in it). Not the weights' index: it says which of them are loaded."""
_WEIGHTS = ("model*.safetensors", "*/model*.safetensors")
"""What mlx-lm loads, and an embedder's layers behind the pooling."""
_KEPT = "weights"
_PIECE_BYTES = 4 << 20
_TICKS_NS = 2 * 10**9
"""A file that changed less than this ago may change again and keep its time of change: file systems count in
steps of up to 2 s."""
_one_at_a_time = threading.Lock()
"""Several engines are started at once, and the first one's reading serves all of them."""


def fingerprint(folder: Path, cache_folder: Path | None = None) -> str:
    """Return 64 hex digits for the model in `folder`, the same on every machine that has a copy of it.

    Reads all of the weights, at 1.7 GB a second on one core and without the GIL, or only what has changed if
    `cache_folder` keeps digests. Raise OSError if a file cannot be read, or changes meanwhile.
    """
    kept = None if cache_folder is None else cache_folder / _KEPT
    weights = {path for pattern in _WEIGHTS for path in folder.glob(pattern)} - _left_out(folder)
    shaping = {path for pattern in _SHAPING for path in folder.glob(pattern)}
    for parent in {folder, *(path.parent for path in weights)}:
        shaping |= set(parent.glob("config.json"))
    parts = [
        (str(path.relative_to(folder)), _digest(path, kept if path in weights else None))
        for path in sorted(shaping | weights)
    ]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _left_out(folder: Path) -> set[Path]:
    """Return the files of weights that are not loaded. A folder that no engine can load has none."""
    try:
        names = read_weights(folder).names
    except StartupError:
        return set()
    return {path for path in folder.glob(PATTERN) if path.name not in names}


class _KeptDigest(msgspec.Struct, frozen=True):
    """`file` identifies the content: no program can set back a file's time of change."""

    path: str
    file: tuple[int, int, int, int, int]
    digest: str


def _digest(path: Path, kept: Path | None) -> str:
    if kept is None:
        return _read(path)[0]
    real = str(path.resolve())
    entry = kept / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:32]}.json"
    with _one_at_a_time:
        if (known := _known(entry)) is not None and (known.path, known.file) == (real, _file(path.stat())):
            return known.digest
        digest, status = _read(path)
        if time.time_ns() - status.st_ctime_ns > _TICKS_NS:
            _keep(entry, _KeptDigest(real, _file(status), digest))
        return digest


def _read(path: Path) -> tuple[str, os.stat_result]:
    digest, piece = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        while length := file.readinto(piece):
            digest.update(piece[:length])
        if _file(os.fstat(file.fileno())) != _file(before):
            raise OSError(f"{path} changed while it was read")
    return digest.hexdigest(), before


def _file(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _known(entry: Path) -> _KeptDigest | None:
    try:
        return msgspec.json.decode(entry.read_bytes(), type=_KeptDigest)
    except (OSError, msgspec.DecodeError):
        return None


def _keep(entry: Path, digest: _KeptDigest) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        half = entry.with_suffix(f".{os.getpid()}")
        half.write_bytes(msgspec.json.encode(digest))
        half.replace(entry)
    except OSError:
        return  # It is read again the next time.
