"""What an engine reports of itself when it is inspected: the contents of an Inspection (`messages.py`).

As there, the field order is the format, and PROTOCOL_VERSION is raised with any change.
"""

from __future__ import annotations

from scheduler.shared.wire_struct import WireStruct


class PrefixReport(WireStruct, frozen=True):
    """A shared prefix: its length, the number of cached continuations, its hits, and its first tokens."""

    tokens: int
    references: int
    hits: int
    head: list[int]


class CacheReport(WireStruct, frozen=True):
    """Content of the prefix cache, and totals since the engine started."""

    budget_bytes: int
    nodes: int
    tokens: int
    snapshots: int
    segment_bytes: int
    snapshot_bytes: int
    key_bytes: int
    """Bytes of the token ids themselves."""
    replaced_bytes: int
    """Bytes of segments split while leased, which leases may still hold whole."""
    leases: int
    query_tokens: int
    hit_tokens: int
    stored_tokens: int
    evicted_tokens: dict[str, int]
    shared_prefixes: list[PrefixReport]
    running_bytes: int = 0
    held_bytes: int = 0
    """Bytes that are held because requests or operators asked for it."""
    refused_holds: int = 0
    """How many holds were refused, as what may be held is bounded."""
