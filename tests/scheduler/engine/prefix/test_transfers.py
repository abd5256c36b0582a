"""Export and import of a prefix between two caches, without a model: every way in which a file is refused."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.prefix.nodes import Snapshot
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.prefix_file import FileRefused, decode_header
from scheduler.engine.prefix.transfers import PrefixTransfers
from scheduler.engine.scripted_segments import KV_BYTES_PER_TOKEN, ScriptedCodec, ScriptedRun
from scheduler.link.transfers import (
    CloseTransfer,
    OpenExport,
    OpenImport,
    ReadExport,
    TransferReply,
    WriteImport,
)
from scheduler.token_ids import KEY_BYTES
from tests.scheduler.engine.prefix.cached_prompts import words

TOKEN_BYTES = KV_BYTES_PER_TOKEN + KEY_BYTES


class Side:
    """A cache with room for a number of tokens, and its transfers."""

    def __init__(self, room_tokens: int = 100_000) -> None:
        self.cache: PrefixCache[ScriptedRun, Snapshot] = PrefixCache(
            room_tokens * TOKEN_BYTES, KV_BYTES_PER_TOKEN, False, lambda: 0.0
        )
        self.transfers = PrefixTransfers(self.cache, ScriptedCodec())

    def has(self, tokens: array[int], salt: str = "") -> int:
        return self.cache.match(tokens, salt).length

    def ask(self, command: OpenExport | ReadExport | OpenImport | WriteImport) -> TransferReply:
        reply = self.transfers.answer(command)
        assert reply is not None
        return reply

    def store(self, tokens: array[int], salt: str = "") -> None:
        self.cache.insert(tokens, salt, lambda start, end: ScriptedRun(end - start))

    def export(self, tokens: array[int]) -> tuple[bytes, list[bytes]]:
        opened = self.ask(OpenExport(1, "", "", "model", tokens))
        count = decode_header(opened.data).records
        records = [self.ask(ReadExport(1)).data for _ in range(count)]
        assert self.transfers.answer(CloseTransfer(1)) is None
        return opened.data, records

    def load(self, tokens: array[int], header: bytes, records: list[bytes]) -> TransferReply:
        reply = self.ask(OpenImport(2, "", "", "model", tokens, header, 10.0))
        for record in records:
            if not reply.refusal:
                reply = self.ask(WriteImport(2, record))
        self.transfers.answer(CloseTransfer(2))
        assert not self.cache._tree.leases
        assert self.cache.check_integrity() == []
        return reply


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cached=st.integers(1, 4000), asked=st.integers(1, 4000), known=st.integers(0, 4000))
def test_what_is_cached_of_a_prompt_arrives(cached: int, asked: int, known: int) -> None:
    """Whatever of it the other cache has already, and wherever its edges end."""
    first, second = Side(), Side()
    first.store(words(0, cached))
    second.store(words(0, known))
    header, records = first.export(words(0, asked))
    count = decode_header(header).tokens
    assert count == min(cached, asked)
    reply = second.load(words(0, count), header, records)
    assert (reply.refusal, reply.tokens) == ("", count)
    assert second.has(words(0, 4000)) == max(count, known)


def test_nothing_cached_is_nothing_to_export() -> None:
    """Under another salt, too."""
    side = Side()
    side.store(words(0, 10), "ours")
    assert side.ask(OpenExport(1, "", "", "model", words(0, 10))) == TransferReply(1)
    assert side.ask(ReadExport(1)).refusal


@pytest.mark.parametrize("flipped", [0, 1, 2])
def test_a_damaged_record_enters_nothing(flipped: int) -> None:
    """Nor what follows it; whole ones before it stay, and are said."""
    first, second = Side(), Side()
    first.store(words(0, 3000))
    header, records = first.export(words(0, 3000))
    assert len(records) == 3
    damaged = bytearray(records[flipped])
    damaged[-1] ^= 1
    records[flipped] = bytes(damaged)
    reply = second.load(words(0, 3000), header, records)
    assert reply.refusal == f"it is damaged after {1024 * flipped} tokens: checksum"
    assert second.has(words(0, 3000)) == 1024 * flipped


def test_records_in_another_order_are_refused() -> None:
    """Each belongs behind the tokens before it."""
    first, second = Side(), Side()
    first.store(words(0, 3000))
    header, records = first.export(words(0, 3000))
    assert "foreign" in second.load(words(0, 3000), header, records[::-1]).refusal
    assert second.has(words(0, 3000)) == 0


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("model", "other", "the file is of model 'other' and not 'model'"),
        ("adapter", "other", "the file is of LoRA adapter 'other' and not ''"),
        ("dtype", "bfloat16", "the file is of weights dtype 'bfloat16' and not 'none'"),
        ("software", "mlx 9", "the file is of software 'mlx 9' and not 'scripted'"),
    ],
)
def test_another_identity_is_refused_by_name(field: str, value: str, said: str) -> None:
    """Before any record is read."""
    first, second = Side(), Side()
    first.store(words(0, 10))
    header, records = first.export(words(0, 10))
    fields = msgspec.json.decode(header)
    fields["identity"][field] = value
    reply = second.load(words(0, 10), msgspec.json.encode(fields), records)
    assert reply.refusal == said
    assert second.has(words(0, 10)) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 0},
        {"tokens": "10"},
        {"tokens": 9},
        {"block_tokens": 0},
        {"block_tokens": -1},
        {"block_tokens": True},
        {"has_state": True},
        {"has_state": 1},
        {"ids": "0"},
        {"ids": None},
        {"identity": None},
        {"identity": {}},
    ],
)
def test_a_wrong_header_is_refused(change: dict[str, object]) -> None:
    """Whatever is wrong in it, and bytes that are none."""
    first, second = Side(), Side()
    first.store(words(0, 10))
    header, records = first.export(words(0, 10))
    wrong = msgspec.json.encode({**msgspec.json.decode(header), **change})
    for raw in (wrong, b"", b"[]", b"\xff"):
        assert second.load(words(0, 10), raw, records).refusal
    assert second.has(words(0, 10)) == 0


def test_other_ids_are_refused() -> None:
    """The header has their digest."""
    first, second = Side(), Side()
    first.store(words(0, 10))
    header, records = first.export(words(0, 10))
    assert second.load(words(5, 10), header, records).refusal == "its token ids are damaged"


def test_what_has_no_room_is_said() -> None:
    """What fits stays."""
    first, second = Side(), Side(room_tokens=1500)
    first.store(words(0, 3000))
    header, records = first.export(words(0, 3000))
    reply = second.load(words(0, 3000), header, records)
    assert reply.refusal == "there is room for 1500 of its tokens in the prefix cache"
    assert second.has(words(0, 3000)) == 1500


def test_one_at_a_time() -> None:
    """Another one is refused until the first is closed; what is exported stays meanwhile."""
    side = Side()
    side.store(words(0, 10))
    side.ask(OpenExport(1, "", "", "model", words(0, 10)))
    busy = TransferReply(2, refusal="another prefix is being exported or imported")
    assert side.ask(OpenExport(2, "", "", "model", words(0, 10))) == busy
    assert side.ask(OpenImport(2, "", "", "model", words(0, 10), b"", 10.0)) == busy
    assert side.ask(WriteImport(2, b"")).refusal
    side.cache.clear()
    assert side.has(words(0, 10)) == 10
    side.transfers.answer(CloseTransfer(2))
    assert side.ask(ReadExport(1)).data
    side.transfers.answer(CloseTransfer(1))
    side.cache.clear()
    assert side.has(words(0, 10)) == 0


def test_a_header_that_cannot_be_read_says_so() -> None:
    """The parent reads it before an engine does."""
    with pytest.raises(FileRefused, match="cannot be read"):
        decode_header(b"{}")
