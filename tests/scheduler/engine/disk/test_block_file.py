"""The file format: decoding returns what was written, or raises Damage, for any change of any byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.disk.block_chain import Chain, Place
from scheduler.engine.disk.block_file import ITEM_BYTES, Content, Damage, HostArray, decode, encode
from tests.fakes.mutation import mutations
from tests.scheduler.engine.disk.disk_contents import MODEL, content_of, spelt

PLACE = Chain(MODEL, "", spelt("a")).block(256)
OTHER = Chain(MODEL, "", spelt("b")).block(256)
FILE = b"".join(encode(content_of(PLACE), PLACE, MODEL))
HEADER_END = 8 + int.from_bytes(FILE[:8], "little")


@st.composite
def host_arrays(draw: st.DrawFn) -> HostArray:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    return HostArray(dtype, shape, draw(st.binary(min_size=nbytes, max_size=nbytes)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
contents = st.builds(
    Content,
    st.dictionaries(st.text().filter(lambda name: name != "__metadata__"), host_arrays(), max_size=5),
    st.dictionaries(st.text(), json_values, max_size=3),
)


def damage_of(raw: bytes, place: Place = PLACE, fingerprint: str = MODEL) -> str:
    with pytest.raises(Damage) as caught:
        decode(raw, place, fingerprint)
    return caught.value.kind


@given(contents)
def test_what_was_encoded_comes_back(content: Content) -> None:
    assert decode(b"".join(encode(content, PLACE, MODEL)), PLACE, MODEL) == content


@given(st.binary(max_size=200))
def test_any_bytes_are_damage_and_no_other_error(raw: bytes) -> None:
    damage_of(raw)
    damage_of((len(raw)).to_bytes(8, "little") + raw)


@given(mutations(st.just(FILE)))
def test_a_file_with_anything_changed_is_damage_or_the_file(raw: bytes) -> None:
    """Runs of bytes replaced, lost or put in, several together: never another content, never another
    error."""
    try:
        assert decode(raw, PLACE, MODEL) == decode(FILE, PLACE, MODEL)
        assert raw == FILE
    except Damage:
        assert raw != FILE


def test_a_flipped_bit_anywhere_is_damage() -> None:
    """In a number, too: nothing else would say that a key or a value is another one."""
    for at in range(len(FILE)):
        damage_of(FILE[:at] + bytes([FILE[at] ^ 1]) + FILE[at + 1 :])


def test_a_file_of_another_model_or_place_is_foreign() -> None:
    assert damage_of(FILE, fingerprint="0" * 64) == "foreign"
    assert damage_of(FILE, place=OTHER) == "foreign"


def test_a_file_of_another_program_is_foreign() -> None:
    header = b'{"__metadata__":{"format":"mlx"}}'
    assert damage_of(len(header).to_bytes(8, "little") + header) == "foreign"


def sealed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A file with a changed header and a checksum that is right for it."""
    header = json.loads(FILE[8:HEADER_END])
    header["__metadata__"]["checksum"] = "0" * 64
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    blank = len(text).to_bytes(8, "little") + text + FILE[HEADER_END:]
    return blank.replace(b"0" * 64, blake2b(blank, digest_size=32).hexdigest().encode(), 1)


VALUES = "layers.0.values"


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update({VALUES: 7}),
        lambda header: header[VALUES].update(shape=[-1, -5]),
        lambda header: header[VALUES].update(data_offsets=[0, 10**12]),
        lambda header: header["__metadata__"].update(content="{"),
    ],
)
def test_a_whole_file_that_makes_no_sense_is_foreign(change: Callable[[dict[str, Any]], object]) -> None:
    """Nobody's accident: the checksum is right. Still no exception but Damage."""
    assert damage_of(sealed(change)) == "foreign"
