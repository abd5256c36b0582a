"""A prefix's way out of the cache into a file's records, and back into another cache.

No arrays here: a `PrefixCodec` makes records of segments, and segments of records. The engine's thread calls
this between steps, for one record of about a megabyte each. What is exported is leased until it ends. Of an
import nothing enters the cache that is not checked: the header's identity, each record's checksum, place and
sizes. What entered before a damaged record is whole, and stays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, assert_never

from scheduler.engine.adapter_files import salted
from scheduler.engine.disk.block_file import Content, Damage, decode, encode
from scheduler.engine.prefix.nodes import Lease, SegmentT, SnapshotT
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.prefix_file import FileRefused, Header, RecordPlaces, decode_header, ids_digest
from scheduler.link.transfers import (
    MAX_RECORD_BYTES,
    CloseTransfer,
    OpenExport,
    OpenImport,
    ReadExport,
    Transfer,
    TransferReply,
    WriteImport,
)

NONE_HERE = "this engine exports and imports no prefixes: it has no prefix cache, or only a part of the model"
_BUSY = "another prefix is being exported or imported"
_BLOCK_BYTES = 1 << 20
_MOST_BLOCK_TOKENS = 1024
_INSERTED_TOKENS = 512
"""An edge of the tree; shorter ones would make long paths."""


class PrefixCodec(Protocol[SegmentT, SnapshotT]):
    """Between what the cache holds and what a file has. `span`, `state` and `segment` copy."""

    @property
    def identity(self) -> Mapping[str, str]:
        """The weights' dtype and the software that computes."""
        ...

    @property
    def token_bytes(self) -> int:
        """Of keys and values; 0: no layer can be cut."""
        ...

    @property
    def needs_state(self) -> bool: ...

    def span(self, pieces: Sequence[tuple[SegmentT, int]], start: int, end: int) -> Content: ...

    def check_span(self, span: Content, tokens: int) -> None:
        """Raise ValueError for what is no span of this many tokens of this model."""
        ...

    def segment(self, spans: Iterable[Content], skip: int, tokens: int) -> SegmentT:
        """Of consecutive spans: `tokens` of them after the first `skip`."""
        ...

    def state(self, snapshot: SnapshotT) -> Content: ...

    def snapshot(self, state: Content, tokens: int) -> SnapshotT:
        """Raise ValueError for what is no state of this model after this many tokens."""
        ...


@dataclass(slots=True)
class _Export(Generic[SegmentT, SnapshotT]):
    query: int
    lease: Lease[SegmentT, SnapshotT]
    places: RecordPlaces


@dataclass(slots=True)
class _Import(Generic[SegmentT, SnapshotT]):
    """`spans`: read, and not in the cache yet; they begin at `cached`. `lease`: on what is."""

    query: int
    salt: str
    tokens: array[int]
    header: Header
    places: RecordPlaces
    hold_seconds: float
    spans: list[Content] = field(default_factory=list)
    cached: int = 0
    lease: Lease[SegmentT, SnapshotT] | None = None


class PrefixTransfers(Generic[SegmentT, SnapshotT]):
    """At most one export or import is open."""

    def __init__(
        self, prefixes: PrefixCache[SegmentT, SnapshotT], codec: PrefixCodec[SegmentT, SnapshotT]
    ) -> None:
        self._prefixes = prefixes
        self._codec = codec
        self._open: _Export[SegmentT, SnapshotT] | _Import[SegmentT, SnapshotT] | None = None

    def answer(self, command: Transfer) -> TransferReply | None:
        """Carry out a command. A refusal ends the transfer."""
        try:
            match command:
                case OpenExport():
                    return self._open_export(command)
                case ReadExport(query=query):
                    return self._read(query)
                case OpenImport():
                    return self._open_import(command)
                case WriteImport(query=query, record=record):
                    return self._write(query, record)
                case CloseTransfer(query=query):
                    self._close(query)
                    return None
                case _:
                    assert_never(command)
        except FileRefused as refused:
            self._close(command.query)
            return TransferReply(command.query, refusal=str(refused))

    def _identity(self, model: str, adapter: str) -> dict[str, str]:
        return {"model": model, "adapter": adapter, **self._codec.identity}

    def _open_export(self, command: OpenExport) -> TransferReply:
        if self._open is not None:
            return TransferReply(command.query, refusal=_BUSY)
        match = self._prefixes.match(command.tokens, salted(command.adapter, command.salt))
        match = match.restorable() if self._codec.needs_state else match
        if not match.length:
            return TransferReply(command.query)
        tokens, size = command.tokens[: match.length], self._codec.token_bytes
        header = Header(
            self._identity(command.model, command.adapter),
            match.length,
            min(_MOST_BLOCK_TOKENS, max(1, _BLOCK_BYTES // size)) if size else 0,
            self._codec.needs_state,
            ids_digest(tokens),
        )
        self._open = _Export(command.query, self._prefixes.pin(match), RecordPlaces(header, tokens))
        return TransferReply(command.query, match.length, header.encode())

    def _read(self, query: int) -> TransferReply:
        export = self._open
        if not isinstance(export, _Export) or export.query != query or not export.places.left:
            raise FileRefused("this engine has no such export: it was restarted")
        start, place = export.places.end, export.places.next()
        if place.kind == "b":
            content = self._codec.span(export.lease.pieces, start, place.position)
        else:
            assert export.lease.snapshot is not None, "a prefix without the state at its end"
            content = self._codec.state(export.lease.snapshot)
        if content.nbytes > MAX_RECORD_BYTES:
            raise FileRefused(f"its state has {content.nbytes} bytes, more than {MAX_RECORD_BYTES}")
        record = b"".join(encode(content, place, export.places.fingerprint))
        return TransferReply(query, place.position, record)

    def _open_import(self, command: OpenImport) -> TransferReply:
        if self._open is not None:
            return TransferReply(command.query, refusal=_BUSY)
        header = decode_header(command.header)
        if refusal := header.refusal(self._identity(command.model, command.adapter)):
            raise FileRefused(refusal)
        size = self._codec.token_bytes
        if header.tokens != len(command.tokens) or header.ids != ids_digest(command.tokens):
            raise FileRefused("its token ids are damaged")
        if bool(header.block_tokens) != bool(size) or header.has_state != self._codec.needs_state:
            raise FileRefused("its layers are not this model's")
        self._open = _Import(
            command.query,
            salted(command.adapter, command.salt),
            command.tokens,
            header,
            RecordPlaces(header, command.tokens),
            command.hold_seconds,
        )
        return TransferReply(command.query)

    def _write(self, query: int, record: bytes) -> TransferReply:
        current = self._open
        if not isinstance(current, _Import) or current.query != query or not current.places.left:
            raise FileRefused("this engine has no such import: it was restarted")
        start, place = current.places.end, current.places.next()
        try:
            content = decode(record, place, current.places.fingerprint)
            if place.kind == "b":
                self._codec.check_span(content, place.position - start)
                self._take(current, content)
            else:
                self._take_state(current, self._codec.snapshot(content, place.position))
        except Damage as damage:
            raise FileRefused(f"it is damaged after {start} tokens: {damage.kind}") from damage
        except FileRefused:
            raise
        except Exception as error:  # Intact bytes of another program: no request may end by it.
            raise FileRefused(f"after {start} tokens it is not this model's: {error}") from error
        hold_refusal = ""
        if not current.places.left and current.hold_seconds > 0:
            hold_refusal = self._prefixes.hold(current.tokens, current.salt, current.hold_seconds).refusal
        return TransferReply(query, current.cached, hold_refusal=hold_refusal)

    def _take(self, current: _Import[SegmentT, SnapshotT], span: Content) -> None:
        current.spans.append(span)
        end = current.places.end
        if end - current.cached >= _INSERTED_TOKENS or end == current.header.tokens:
            self._insert(current, end)

    def _take_state(self, current: _Import[SegmentT, SnapshotT], snapshot: SnapshotT) -> None:
        if not self._codec.token_bytes:
            self._insert(current, current.header.tokens)
        known = self._prefixes.match(current.tokens, current.salt).restorable()
        if known.length < len(current.tokens) and not self._prefixes.attach(
            current.tokens, current.salt, snapshot
        ):
            raise FileRefused("there is no room for its state in the prefix cache")

    def _insert(self, current: _Import[SegmentT, SnapshotT], end: int) -> None:
        """Cache what is read up to `end`, and lease it until the import ends."""
        start, spans = current.cached, current.spans
        tokens, salt = current.tokens[:end], current.salt
        self._prefixes.insert(
            tokens, salt, lambda first, last: self._codec.segment(spans, first - start, last - first)
        )
        current.spans, before = [], current.lease
        match = self._prefixes.match(tokens, salt)
        current.lease = self._prefixes.pin(match)
        if before is not None:
            self._prefixes.release(before)
        current.cached = match.length
        if match.length < end:
            raise FileRefused(f"there is room for {match.length} of its tokens in the prefix cache")

    def _close(self, query: int) -> None:
        if (current := self._open) is None or current.query != query:
            return
        self._open = None
        if current.lease is not None:
            self._prefixes.release(current.lease)
