"""Messages to frames and back, in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import LinkError
from scheduler.shared.framing import MAX_FRAME_BYTES, FrameReader, encode, engine_inbound, server_inbound
from scheduler.shared.messages import (
    AdapterSource,
    Alive,
    Begun,
    CacheCounters,
    Cancel,
    Counters,
    DiskCounters,
    Fault,
    FromEngine,
    Inspect,
    Inspection,
    Load,
    Loading,
    PrefillOut,
    Pulse,
    Ready,
    Retired,
    Sampling,
    ScriptedPlan,
    StepOutput,
    Submit,
    ToEngine,
    TokenOut,
    TurnEnded,
)
from scheduler.shared.reports import (
    CacheReport,
    PrefixReport,
)
from scheduler.shared.token_ids import compact
from tests.examples import examples
from tests.fakes.mutation import mutations

thoroughly = settings(max_examples=examples(60), deadline=None)

numbers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False)
words = st.text(max_size=12)
few = st.integers(0, 5)
backends = st.sampled_from(["mlx", "scripted"])
dtypes = st.sampled_from(["auto", "stored", "packed", "float32", "bfloat16", "float16"])

token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=9).map(compact)
plans = st.builds(ScriptedPlan, floats, numbers, numbers, numbers)
samplings = st.builds(
    Sampling,
    *(floats, floats, numbers, floats, numbers, floats, numbers, floats, floats),
    st.lists(st.tuples(numbers, floats), max_size=3).map(tuple),
)
adapters = st.builds(AdapterSource, words, words, words)
to_engine: st.SearchStrategy[ToEngine] = st.one_of(
    st.builds(
        Load,
        backends,
        words,
        numbers,
        numbers,
        numbers,
        dtypes,
        plans,
        numbers,
        words,
        numbers,
        floats,
        version=numbers,
    ),
    st.builds(
        Submit,
        numbers,
        token_ids,
        numbers,
        st.lists(numbers, max_size=3).map(tuple),
        samplings,
        words,
        st.none() | words,
        numbers,
        st.lists(numbers, max_size=3).map(tuple),
        holds=st.lists(st.tuples(numbers, floats), max_size=2).map(tuple),
    ),
    st.builds(TurnEnded, words, words, words, words),
    st.builds(Cancel, numbers),
    st.builds(Inspect, numbers, st.booleans(), numbers, numbers),
    st.builds(Pulse),
)
reasons = st.sampled_from(["stop", "length", "cancelled", "refused", "failed", "grammar"])
disks = st.builds(DiskCounters, *[numbers] * 9, st.dictionaries(words, numbers, max_size=2), numbers)
cache_reports = st.builds(
    CacheReport,
    *[numbers] * 12,
    st.dictionaries(words, numbers, max_size=3),
    st.lists(st.builds(PrefixReport, numbers, numbers, numbers, st.lists(numbers, max_size=3)), max_size=2),
    numbers,
    st.lists(words, max_size=2),
    numbers,
    numbers,
)
from_engine: st.SearchStrategy[FromEngine] = st.one_of(
    st.builds(Loading, words),
    st.builds(Ready, numbers, words, words, numbers, numbers, numbers, words),
    st.builds(Fault, words),
    st.builds(
        Begun,
        st.sampled_from(["reading", "decode", "decode and prefill", "prefill"]),
        st.lists(numbers, max_size=4).map(tuple),
        *(numbers, numbers),
    ),
    st.builds(Alive, floats),
    st.builds(
        StepOutput,
        st.lists(st.builds(TokenOut, numbers, numbers), max_size=4),
        st.lists(st.builds(PrefillOut, numbers, numbers, numbers, numbers), max_size=4),
        st.lists(st.builds(Retired, numbers, reasons, words), max_size=4),
        st.builds(
            Counters,
            *(numbers, numbers, numbers, floats, numbers, numbers, numbers, numbers, numbers),
            st.builds(CacheCounters, *[numbers] * 9),
        ),
    ),
    st.builds(
        Inspection,
        *(numbers, numbers, st.none() | cache_reports, st.none() | disks),
        numbers,
    ),
)
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


@thoroughly
@given(message=from_engine, following=from_engine, cut=st.integers(0, 1000))
def test_a_message_does_not_wait_for_the_next_one(
    message: FromEngine, following: FromEngine, cut: int
) -> None:
    """Data after a whole frame is kept until it is a frame itself, and delays nothing."""
    reader = server_inbound()
    next_frame = encode(following)
    cut %= len(next_frame)
    assert list(reader.feed(encode(message) + next_frame[:cut])) == [message]
    assert list(reader.feed(next_frame[cut:])) == [following]


def test_the_property_tests_know_every_message() -> None:
    """A type added to the protocol must be added above."""
    assert set(get_args(ToEngine)) == {
        Load,
        Submit,
        TurnEnded,
        Cancel,
        Inspect,
        Pulse,
    }
    assert set(get_args(FromEngine)) == {
        Loading,
        Ready,
        Begun,
        StepOutput,
        Inspection,
        Alive,
        Fault,
    }


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
    data=st.binary(max_size=60)
    | st.binary(max_size=60).map(frame)
    | st.recursive(
        st.none() | st.booleans() | numbers | floats | words | st.binary(max_size=5),
        lambda values: st.lists(values, max_size=5) | st.dictionaries(words, values, max_size=3),
    ).map(lambda value: frame(msgspec.msgpack.encode(value))),
    sizes=sizes,
)
def test_bytes_that_are_no_message_are_a_link_error_or_wait_for_more(data: bytes, sizes: list[int]) -> None:
    """Random bytes, random frames, well-formed msgpack of another shape: never another exception."""
    for reader in (server_inbound(), engine_inbound()):
        start = 0
        try:
            for size in [*sizes, len(data)]:
                for message in reader.feed(data[start : start + size]):
                    assert isinstance(message, msgspec.Struct)
                start += size
        except LinkError:
            continue


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


def test_what_came_before_the_garbage_is_delivered() -> None:
    """The reader yields each whole message before it looks at the next frame."""
    messages = server_inbound().feed(encode(Loading("weights")) + frame(b"\xc1"))
    assert next(messages) == Loading("weights")
    with pytest.raises(LinkError):
        next(messages)
