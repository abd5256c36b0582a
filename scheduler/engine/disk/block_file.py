"""The format of a file of the disk tier: safetensors, with a checksum over every byte.

Pure functions from bytes to bytes. The checksum has a fixed place in the header and covers the whole file
(with zeros in its own place), so that it detects any flipped bit, also in a length, a shape or a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from typing import Any, Final, Literal, TypeAlias

from scheduler.engine.disk.block_chain import FORMAT_VERSION, Place

ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""The element types of safetensors that MLX has, with their sizes."""

Buffer: TypeAlias = bytes | memoryview
DamageKind: TypeAlias = Literal["damaged", "foreign"]

_OPENING = b'{"__metadata__":{"format":"penstock-kv-%d","checksum":"' % FORMAT_VERSION
_NO_CHECKSUM = b"0" * 64
_START = re.compile(re.escape(_OPENING) + rb'[0-9a-f]{64}","bytes":"(0|[1-9][0-9]{0,14})",')
_LENGTH_BYTES = 8


class Damage(Exception):
    """A file's content cannot be used; `kind` is the reason."""

    def __init__(self, kind: DamageKind) -> None:
        super().__init__(kind)
        self.kind: DamageKind = kind


@dataclass(frozen=True, slots=True)
class HostArray:
    """An array detached from its device: C order, little-endian."""

    dtype: str
    """A key of ITEM_BYTES."""
    shape: tuple[int, ...]
    data: Buffer

    def __post_init__(self) -> None:
        """Raise ValueError where dtype, shape and size do not agree."""
        if self.dtype not in ITEM_BYTES or any(size < 0 for size in self.shape):
            raise ValueError(f"no array has dtype {self.dtype} and shape {self.shape}")
        if self.nbytes != prod(self.shape) * ITEM_BYTES[self.dtype]:
            raise ValueError(f"{self.nbytes} bytes are no {self.dtype} array of shape {self.shape}")

    @property
    def nbytes(self) -> int:
        return memoryview(self.data).nbytes


@dataclass(frozen=True, slots=True)
class Content:
    """The content of one file; opaque to the tier."""

    arrays: Mapping[str, HostArray]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Small, and JSON: a tuple comes back as a list."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


def encode(content: Content, place: Place, fingerprint: str) -> list[Buffer]:
    """Return the file in pieces, to be written in order; the arrays' bytes are not copied."""
    assert "__metadata__" not in content.arrays, "safetensors reserves this name"
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": f"penstock-kv-{FORMAT_VERSION}",
            "checksum": _NO_CHECKSUM.decode(),
            "bytes": str(content.nbytes),
            **_identity(place, fingerprint),
            "content": json.dumps(dict(content.metadata)),
        }
    }
    offset = 0
    for name, array in content.arrays.items():
        end = offset + array.nbytes
        entries[name] = {"dtype": array.dtype, "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH_BYTES)
    start = len(header).to_bytes(_LENGTH_BYTES, "little") + header
    parts: list[Buffer] = [
        memoryview(array.data).cast("B") for array in content.arrays.values() if array.nbytes
    ]
    before, after = _around_checksum(start)
    return [before + _checksum([before, _NO_CHECKSUM, after, *parts]) + after, *parts]


def decode(raw: bytes, place: Place, fingerprint: str) -> Content:
    """Return the content of a whole file; its arrays are views of `raw`.

    Raise Damage: "foreign" for a file that is not ours, of another model or of another place, "damaged" for
    any other difference from what was written.
    """
    view = memoryview(raw)
    start, data = _split(view)
    before, after = _around_checksum(start)
    stored = bytes(start[len(before) : len(before) + len(_NO_CHECKSUM)])
    if _checksum([before, _NO_CHECKSUM, after, data]) != stored:
        raise Damage("damaged")
    try:
        entries = json.loads(bytes(start[_LENGTH_BYTES:]))
        metadata = entries.pop("__metadata__")
        if _identity(place, fingerprint).items() <= metadata.items():
            arrays = {name: _array(entry, data) for name, entry in entries.items()}
            return Content(arrays, json.loads(metadata["content"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # Intact, but not written by this `encode`.
    raise Damage("foreign")


def _split(view: memoryview) -> tuple[memoryview, memoryview]:
    """Return the length with the header, and the arrays' bytes; the file must be exactly as long as
    stated."""
    header_end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    if len(view) < max(header_end, _LENGTH_BYTES + 1):
        raise Damage("damaged")
    start = _START.match(view[_LENGTH_BYTES:header_end])
    if start is None:
        raise Damage("foreign")
    if len(view) != header_end + int(start[1]):
        raise Damage("damaged")
    return view[:header_end], view[header_end:]


def _array(entry: Mapping[str, Any], data: memoryview) -> HostArray:
    """Raise ValueError, TypeError or KeyError for a wrong entry."""
    begin, end = entry["data_offsets"]
    return HostArray(entry["dtype"], tuple(entry["shape"]), data[begin:end])


def _identity(place: Place, fingerprint: str) -> dict[str, str]:
    return {
        "fingerprint": fingerprint,
        "key": place.key.hex(),
        "parent": place.predecessor.hex(),
        "place": f"{place.kind}{place.position}",
    }


def _around_checksum(start: Buffer) -> tuple[bytes, bytes]:
    at = _LENGTH_BYTES + len(_OPENING)
    return bytes(start[:at]), bytes(start[at + len(_NO_CHECKSUM) :])


def _checksum(parts: list[Buffer]) -> bytes:
    digest = blake2b(digest_size=len(_NO_CHECKSUM) // 2)
    for part in parts:
        digest.update(part)  # Releases the GIL: the engine's loop continues.
    return digest.hexdigest().encode()
