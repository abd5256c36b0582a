"""A prefix as a file: its header, and where each record belongs.

A line, then parts, each after its length in four bytes (big-endian): the header, the token ids (32 bits each,
little-endian), and records, which are files of the disk tier (`../disk/block_file.py`): keys and values of
consecutive tokens, and last the state of layers that cannot be cut, if there are any. Each record names its
place in a chain over the identity and all tokens up to its end, and has a checksum over every byte.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from scheduler.engine.disk.block_chain import Key, Kind, Place
from scheduler.token_ids import KEY_BYTES

OPENING = b"penstock prefix 1\n"
LENGTH_BYTES = 4
MAX_HEADER_BYTES = 1 << 16
NAMES: Mapping[str, str] = {
    "model": "model",
    "adapter": "LoRA adapter",
    "dtype": "weights dtype",
    "software": "software",
}
"""What must be equal where a file is read, with names for people."""


class FileRefused(Exception):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """`identity` has a value for each of NAMES. `block_tokens`: of each record but the last; 0: there are no
    keys and values. `ids`: a digest of the token ids."""

    identity: Mapping[str, str]
    tokens: int
    block_tokens: int
    has_state: bool
    ids: str

    @property
    def blocks(self) -> int:
        return -(-self.tokens // self.block_tokens) if self.block_tokens else 0

    @property
    def records(self) -> int:
        return self.blocks + self.has_state

    def encode(self) -> bytes:
        fields = {
            "identity": dict(self.identity),
            "tokens": self.tokens,
            "block_tokens": self.block_tokens,
            "has_state": self.has_state,
            "ids": self.ids,
        }
        return json.dumps(fields).encode()

    def refusal(self, own: Mapping[str, str]) -> str:
        """Why an engine of the identity `own` cannot read the file, empty if it can."""
        different = [
            f"{name} {self.identity[key][:64]!r} and not {own[key][:64]!r}"
            for key, name in NAMES.items()
            if self.identity[key] != own[key]
        ]
        return f"the file is of {', '.join(different)}" if different else ""


def decode_header(raw: bytes) -> Header:
    """Raise FileRefused."""
    try:
        fields: dict[str, Any] = json.loads(raw)
        identity = {key: fields["identity"][key] for key in NAMES}
        header = Header(
            identity, fields["tokens"], fields["block_tokens"], fields["has_state"], fields["ids"]
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileRefused("its header cannot be read") from error
    counts = type(header.tokens) is type(header.block_tokens) is int
    texts = all(isinstance(text, str) for text in (*identity.values(), header.ids))
    if not counts or not texts or type(header.has_state) is not bool:
        raise FileRefused("its header cannot be read")
    if header.tokens <= 0 or header.block_tokens < 0 or not header.records:
        raise FileRefused("its header says that there is nothing in it")
    return header


def ids_digest(tokens: array[int]) -> str:
    return blake2b(tokens, digest_size=20).hexdigest()


class RecordPlaces:
    """The places of a file's records, in order."""

    def __init__(self, header: Header, tokens: array[int]) -> None:
        self._header = header
        self._ids = memoryview(tokens).cast("B")
        identity = json.dumps(dict(header.identity), sort_keys=True).encode()
        self.fingerprint = blake2b(identity, digest_size=20).hexdigest()
        self._key: Key = blake2b(identity, digest_size=20, person=b"prefix file").digest()
        self.end = 0
        """The tokens up to the end of the last record."""
        self.left = header.records

    def next(self) -> Place:
        self.left -= 1
        start, kind = self.end, "b"
        if self.left == 0 and self._header.has_state:
            self.end, kind = self._header.tokens, "s"
        else:
            self.end = min(start + self._header.block_tokens, self._header.tokens)
        return self._place("s" if kind == "s" else "b", start)

    def _place(self, kind: Kind, start: int) -> Place:
        parent = self._key
        digest = blake2b(parent, digest_size=20, person=kind.encode())
        digest.update(self._ids[start * KEY_BYTES : self.end * KEY_BYTES])
        self._key = digest.digest()
        return Place(self._key, parent, kind, self.end)
