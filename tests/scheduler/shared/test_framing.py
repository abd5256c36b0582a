"""Messages to frames and back, in pieces of any size."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from scheduler.errors import LinkError
from scheduler.shared.framing import MAX_FRAME_BYTES, FrameReader, encode, engine_inbound, server_inbound
from scheduler.shared.messages import Cancel, Fault, FromEngine, ToEngine
from scheduler.shared.token_ids import compact
from tests.examples import examples
from tests.fakes.mutation import mutations

thoroughly = settings(max_examples=examples(60), deadline=None)

numbers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False)
words = st.text(max_size=12)
token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=9).map(compact)


@cache
def any_struct(cls: type) -> st.SearchStrategy[Any]:
    found = inspect.type_info(cls)
    assert isinstance(found, inspect.StructType)
    return st.builds(cls, **{field.name: any_of(field.type) for field in found.fields})


def any_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value of a type that a message may have."""
    match kind:
        case inspect.UnionType(types=types):
            return st.one_of([any_of(one) for one in types])
        case inspect.StructType(cls=cls):
            return any_struct(cls)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.ListType(item_type=item):
            return st.lists(any_of(item), max_size=3)
        case inspect.VarTupleType(item_type=item):
            return st.lists(any_of(item), max_size=3).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(any_of, items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(any_of(key), any_of(value), max_size=2)
        case inspect.CustomType(cls=cls) if cls is array:
            return token_ids
        case _:
            return _PLAIN[type(kind)]


_PLAIN: dict[type, st.SearchStrategy[Any]] = {
    inspect.BoolType: st.booleans(),
    inspect.BytesType: st.binary(max_size=5),
    inspect.FloatType: floats,
    inspect.IntType: numbers,
    inspect.NoneType: st.none(),
    inspect.StrType: words,
}
to_engine: st.SearchStrategy[ToEngine] = any_of(inspect.type_info(ToEngine))
from_engine: st.SearchStrategy[FromEngine] = any_of(inspect.type_info(FromEngine))
sizes = st.lists(st.integers(1, 40), max_size=20)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def read(reader: FrameReader[FromEngine], data: bytes, sizes: Sequence[int]) -> list[FromEngine]:
    """Everything that comes out of `data` in pieces of these sizes, the rest in one."""
    messages: list[FromEngine] = []
    start = 0
    for size in [*sizes, len(data)]:
        messages.extend(reader.feed(data[start : start + size]))
        start += size
    return messages


@thoroughly
@given(st.lists(to_engine, max_size=5))
def test_every_command_arrives_as_it_was_sent(messages: list[ToEngine]) -> None:
    """All types that the parent sends, with any values, several in one piece."""
    assert list(engine_inbound().feed(b"".join([encode(message) for message in messages]))) == messages


@thoroughly
@given(messages=st.lists(from_engine, max_size=5), sizes=sizes)
def test_every_report_arrives_whole_whatever_the_pieces(messages: list[FromEngine], sizes: list[int]) -> None:
    """All types that the engine sends, whole, in pieces, and byte by byte."""
    data = b"".join([encode(message) for message in messages])
    assert read(server_inbound(), data, []) == messages
    assert read(server_inbound(), data, sizes) == messages
    assert read(server_inbound(), data, [1] * len(data)) == messages


def test_a_length_above_the_bound_is_refused_before_its_bytes_come() -> None:
    """Garbage must not make the reader buffer gigabytes: the fourth byte is enough."""
    reader = server_inbound()
    announced = (MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    assert list(reader.feed(announced[:3])) == []
    with pytest.raises(LinkError, match=str(MAX_FRAME_BYTES)):
        list(reader.feed(announced[3:]))
    assert list(server_inbound().feed(MAX_FRAME_BYTES.to_bytes(4, "big"))) == []


def test_a_message_above_the_bound_is_not_sent() -> None:
    """The sender raises, not the receiver."""
    with pytest.raises(LinkError, match="above the frame bound"):
        encode(Fault("x" * MAX_FRAME_BYTES))


@settings(max_examples=examples(80), deadline=None)
@given(
    mutations(st.lists(from_engine.map(encode), min_size=1, max_size=4).map(b"".join)),
    mutations(st.lists(to_engine.map(encode), min_size=1, max_size=4).map(b"".join)),
    sizes,
)
def test_damaged_messages_are_messages_or_a_link_error(up: bytes, down: bytes, sizes: list[int]) -> None:
    """Bytes changed, lost or inserted anywhere: what still decodes is of its type, and nothing else is
    raised."""
    for reader, data in ((server_inbound(), up), (engine_inbound(), down)):
        start = 0
        with suppress(LinkError):
            for size in [*sizes, len(data)]:
                for message in reader.feed(data[start : start + size]):
                    assert isinstance(message, msgspec.Struct)
                start += size


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="never used by msgpack"),
        pytest.param(b"\x92\xa7loading\xa1\xff", id="text that is not UTF-8"),
        pytest.param(b"\x93\xa7loading\xa1x" + b"\x91" * 100_000 + b"\xc0", id="nested without end"),
        pytest.param(encode(Cancel(1))[4:], id="a message of the other direction"),
        pytest.param(msgspec.msgpack.encode(["loading", "x"]) + b"\xc0", id="two values in one frame"),
    ],
)
def test_a_frame_that_is_no_message_is_refused(body: bytes) -> None:
    """For any fault, the error is LinkError."""
    with pytest.raises(LinkError):
        list(server_inbound().feed(frame(body)))


@pytest.mark.parametrize("prompt", [[1, 2], b"abc", None], ids=["a list", "half an id", "none"])
def test_a_prompt_that_is_not_token_ids_is_refused(prompt: object) -> None:
    """Ids are four bytes each."""
    submit = ["submit", 1, prompt, 1, [], ["x"]]
    with pytest.raises(LinkError, match="bytes"):
        list(engine_inbound().feed(frame(msgspec.msgpack.encode(submit))))
