"""Prefixes that an operator keeps until they are released by name."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from scheduler.shared.token_ids import compact

MOST_PINS = 256


@dataclass(frozen=True, slots=True)
class Pin:
    """`tokens`: as they were asked for; what can be restored of them may be shorter."""

    salt: str
    tokens: array[int]


def pin_name(tokens: Sequence[int], salt: str) -> str:
    """Return a pin's name: sixteen hex digits. `salt`: with the adapter (`adapter_files.salted`)."""
    digest = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8, person=b"pin")
    digest.update(b"\0")
    digest.update(compact(tokens))
    return digest.hexdigest()
