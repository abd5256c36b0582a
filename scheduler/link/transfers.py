"""Messages by which a prefix leaves one engine's cache for a file, and enters another's.

One export or import at a time, of one engine; the parent asks for each piece, so that neither side has more
than one in memory. As in `messages.py`, the field order is the format.
"""

from __future__ import annotations

from typing import TypeAlias

from scheduler.link.wire_struct import WireStruct
from scheduler.token_ids import TokenIds

MAX_RECORD_BYTES = 48 << 20
"""Below the bound on frames. Blocks of keys and values are about a megabyte; a state that cannot be cut
is one record."""


class OpenExport(WireStruct, frozen=True, tag="open_export"):
    """Look up what is cached of a prompt. Answered, as all but CloseTransfer, by one TransferReply with the
    same `query`: its `data` is the file's header (`engine/prefix/prefix_file.py`), `tokens` how many are
    cached."""

    query: int
    salt: str
    adapter: str
    """As in Submit."""
    model: str
    """The fingerprint of the model's files, which the engine writes into the header."""
    tokens: TokenIds


class ReadExport(WireStruct, frozen=True, tag="read_export"):
    """The next record, in `data`."""

    query: int


class OpenImport(WireStruct, frozen=True, tag="open_import"):
    """Check a file's header against this engine."""

    query: int
    salt: str
    adapter: str
    model: str
    tokens: TokenIds
    header: bytes
    hold_seconds: float
    """For how long to keep it, as far as the budget allows; infinite: it is pinned."""


class WriteImport(WireStruct, frozen=True, tag="write_import"):
    """The next record: it is checked, and cached with the others. `tokens` of the reply: cached so far."""

    query: int
    record: bytes


class CloseTransfer(WireStruct, frozen=True, tag="close_transfer"):
    """Nobody asks further. It has no reply."""

    query: int


class TransferReply(WireStruct, frozen=True, tag="transfer_reply"):
    """`refusal`: why the transfer has ended, a sentence for the operator; empty: it goes on."""

    query: int
    tokens: int = 0
    data: bytes = b""
    refusal: str = ""
    hold_refusal: str = ""
    """As in Retired, with the last record of an import."""


Transfer: TypeAlias = OpenExport | ReadExport | OpenImport | WriteImport | CloseTransfer
