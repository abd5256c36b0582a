"""Prefixes as files: read what engines have cached, piece by piece, and write it into another server's.

One at a time of a scheduler, for each keeps a prefix in memory that others may need. The parent reads and
writes the file's parts, the engine all that is in them (`engine/prefix/transfers.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import msgspec

from scheduler.config import EngineConfig
from scheduler.engine.adapter_files import salted
from scheduler.engine.disk.model_fingerprint import portable_fingerprint
from scheduler.engine.prefix.prefix_file import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    OPENING,
    FileRefused,
    Header,
    decode_header,
)
from scheduler.engines.life import Life
from scheduler.engines.pool import Pool
from scheduler.errors import PrefixRefused, SchedulerError, Unavailable
from scheduler.link.transfers import (
    MAX_RECORD_BYTES,
    OpenExport,
    OpenImport,
    ReadExport,
    TransferReply,
    WriteImport,
)
from scheduler.prompt.offload import Offload
from scheduler.prompt.prefix_blocks import block_hashes
from scheduler.request import GenerationRequest
from scheduler.telemetry.transfer_meter import TransferMeter
from scheduler.token_ids import KEY_BYTES, TokenIds

_SLACK_BYTES = 1 << 20
"""Of a record beside its content."""


@dataclass(frozen=True, slots=True)
class Export:
    """An open export: `pieces` once, then `close`, which may be called at any time."""

    tokens: int
    pieces: Callable[[], AsyncGenerator[bytes, None]]
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An imported file's ids. `hold_refusal` as in Finished."""

    tokens: TokenIds
    hold_refusal: str


class PrefixFiles:
    """`tokens_of`: of a request's prompt. `salt_of`: with its tenant's, without its adapter's."""

    def __init__(
        self,
        pool: Pool,
        config: EngineConfig,
        offload: Offload,
        context_tokens: int,
        salt_of: Callable[[GenerationRequest], str],
        tokens_of: Callable[[GenerationRequest], Awaitable[TokenIds]],
    ) -> None:
        self._pool = pool
        self._config = config
        self._offload = offload
        self._context_tokens = context_tokens
        self._salt_of = salt_of
        self._tokens_of = tokens_of
        self._model = config.fingerprint
        self._busy = False

    async def export(self, request: GenerationRequest) -> Export:
        """Open an export of what the engine that has most of it has cached of a prompt. Raise PrefixRefused,
        Unavailable, and what reading a prompt raises."""
        with ExitStack() as held:
            meter = held.enter_context(TransferMeter(self._pool.metrics, "export"))
            held.enter_context(self._alone())
            (keyed,) = held.enter_context(self._pool.adapters.using((request,)))
            tokens, salt = await self._tokens_of(request), self._salt_of(request)
            command = OpenExport(0, salt, keyed.adapter_key, await self._fingerprint(), tokens)
            best: tuple[_Opened, TransferReply] | None = None
            refusal = ""
            for life in self._ready():
                opened = held.enter_context(_opened(life))
                reply = await life.transfers.ask(msgspec.structs.replace(command, query=opened.number))
                refusal = refusal or reply.refusal
                if not reply.data or (best is not None and reply.tokens <= best[1].tokens):
                    opened.close()
                    continue
                if best is not None:
                    best[0].close()
                best = opened, reply
            if best is None:
                raise PrefixRefused(
                    refusal or "nothing of this prompt is cached: compute it first (POST /v1/cache)"
                )
            opened, reply = best
            pieces = partial(self._pieces, opened, reply.data, tokens[: reply.tokens], meter)
            return Export(reply.tokens, pieces, held.pop_all().close)

    @staticmethod
    async def _pieces(
        opened: _Opened, header: bytes, tokens: array[int], meter: TransferMeter
    ) -> AsyncGenerator[bytes, None]:
        piece = b"".join((OPENING, _part(header), _part(tokens.tobytes())))
        yield piece
        meter.nbytes += len(piece)
        for _ in range(decode_header(header).records):
            try:
                reply = await opened.life.transfers.ask(ReadExport(opened.number))
                if reply.refusal:
                    raise PrefixRefused(reply.refusal)
            except SchedulerError as error:
                meter.failed(error)
                raise
            piece = _part(reply.data)
            yield piece
            meter.nbytes += len(piece)
            meter.tokens = reply.tokens
        meter.whole()

    async def load(
        self, request: GenerationRequest, file: AsyncIterator[bytes], hold_seconds: float
    ) -> Loaded:
        """Write a file into the cache of the engine with the fewest requests, for requests like this one
        (its adapter, tenant and salt), and hold it there. Raise PrefixRefused, which says how
        much of it is cached, and Unavailable."""
        with ExitStack() as held:
            meter = held.enter_context(TransferMeter(self._pool.metrics, "import"))
            held.enter_context(self._alone())
            (keyed,) = held.enter_context(self._pool.adapters.using((request,)))
            salt = self._salt_of(request)
            reader = _Reader(file, meter)
            try:
                header, raw, tokens = await self._head(reader)
                life = self._ready()[0]
                number = held.enter_context(_opened(life)).number
                adapter, model = keyed.adapter_key, await self._fingerprint()
                reply = await life.transfers.ask(
                    OpenImport(number, salt, adapter, model, tokens, raw, hold_seconds)
                )
                for _ in range(header.records):
                    if reply.refusal:
                        break
                    record = await reader.part(MAX_RECORD_BYTES + _SLACK_BYTES)
                    reply = await life.transfers.ask(WriteImport(number, record))
                    meter.tokens = max(meter.tokens, reply.tokens)
                if reply.refusal:
                    raise PrefixRefused(f"the file is refused: {reply.refusal}")
                await reader.end()
            except FileRefused as refused:
                raise PrefixRefused(f"the file is refused: {refused}") from refused
            meter.whole()
            life.likely.computed(block_hashes(tokens, salted(adapter, salt)))
            return Loaded(tokens, reply.hold_refusal)

    async def _head(self, reader: _Reader) -> tuple[Header, bytes, TokenIds]:
        if await reader.exactly(len(OPENING)) != OPENING:
            raise FileRefused("it is no exported prefix of this version")
        raw = await reader.part(MAX_HEADER_BYTES)
        header = decode_header(raw)
        if header.tokens > self._context_tokens:
            raise FileRefused(f"its {header.tokens} tokens exceed the context of {self._context_tokens}")
        tokens = array("I")
        ids = await reader.part(KEY_BYTES * header.tokens)
        if len(ids) != KEY_BYTES * header.tokens:
            raise FileRefused("its token ids are damaged")
        tokens.frombytes(ids)
        return header, raw, tokens

    def _ready(self) -> list[Life]:
        """The engine with the fewest requests first."""
        engines = sorted(self._pool, key=lambda one: one.requests)
        if ready := [one.life for one in engines if one.life is not None and not one.draining]:
            return ready
        raise Unavailable("the engine is not running", retry_after_seconds=1.0)

    async def _fingerprint(self) -> str:
        if not self._model:
            self._model = await self._offload(partial(portable_fingerprint, self._config.model_folder))
        return self._model

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._busy:
            raise Unavailable("another prefix is being exported or imported", retry_after_seconds=5.0)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False


@dataclass(frozen=True, slots=True)
class _Opened:
    """A transfer of one engine."""

    life: Life
    number: int
    close: Callable[[], None]


@contextmanager
def _opened(life: Life) -> Iterator[_Opened]:
    number = life.transfers.number()
    with ExitStack() as closing:
        closing.callback(life.transfers.close, number)
        yield _Opened(life, number, closing.close)


class _Reader:
    """Bytes of a file that arrives in pieces; no more than one part of it in memory. Raises FileRefused where
    it ends too early."""

    def __init__(self, pieces: AsyncIterator[bytes], meter: TransferMeter) -> None:
        self._pieces = pieces
        self._meter = meter
        self._buffer = bytearray()

    async def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            piece = await anext(self._pieces, None)
            if piece is None:
                raise FileRefused("it is cut off")
            self._buffer += piece
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._meter.nbytes += count
        return taken

    async def part(self, most: int) -> bytes:
        length = int.from_bytes(await self.exactly(LENGTH_BYTES), "big")
        if length > most:
            raise FileRefused(f"a part of {length} bytes is longer than {most}")
        return await self.exactly(length)

    async def end(self) -> None:
        """Raise FileRefused if more follows."""
        while not self._buffer and (piece := await anext(self._pieces, None)) is not None:
            self._buffer += piece
        if self._buffer:
            raise FileRefused("more follows its last part; all before it is cached")


def _part(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH_BYTES, "big") + content
