"""Compressed bodies: understood within the bound on bodies, or refused by the encoding's name."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from api.bodies.body_reading import Policy
from api.bodies.compression import BodyTooLarge, UnknownEncoding, decompressed, encoding_of
from tests.api.client import chat, client_of
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running


def raw(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),
    "deflate": zlib.compress,
    "identity, deflate": raw,
}


async def post(
    content: bytes, encoding: str, path: str = "/v1/chat/completions", **options: Any
) -> httpx.Response:
    scheduler = make_scheduler(Playback("ok"))
    async with running(scheduler), client_of(scheduler, **options) as client:
        headers = {"content-type": "application/json", "content-encoding": encoding}
        return await client.post(path, content=content, headers=headers)


@pytest.mark.parametrize("encoding", WAYS)
@trio_test
async def test_a_compressed_body_is_understood(encoding: str, autojump_clock: trio.testing.MockClock) -> None:
    """Also in two members, and deflate without zlib's header."""
    answer = await post(WAYS[encoding](json.dumps(chat()).encode()), encoding)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
@trio_test
async def test_another_encoding_is_a_415_that_names_it(
    encoding: str, autojump_clock: trio.testing.MockClock
) -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        answer = await post(b"\x28\xb5\x2f\xfd", encoding, path)
        assert answer.status_code == 415
        assert repr(encoding) in answer.json()["error"]["message"]
        assert answer.headers["accept-encoding"] == "gzip, deflate"


@trio_test
async def test_what_a_body_becomes_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """A thousandth of it would pass the server's own bound."""
    body = json.dumps(chat("a" * 5000)).encode()
    for most, status in ((len(body), 200), (len(body) - 1, 413)):
        answer = await post(gzip.compress(body), "gzip", bodies=Policy(body_bytes=most))
        assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == "body_too_large"


@trio_test
async def test_what_is_not_compressed_is_a_400(autojump_clock: trio.testing.MockClock) -> None:
    whole = gzip.compress(json.dumps(chat()).encode())
    for body in (whole[:-9], b"{}", whole + b"x"):
        answer = await post(body, "gzip")
        assert (answer.status_code, "decompressed" in answer.text) == (400, True)


@given(data=st.binary(max_size=300), most=st.integers(0, 300), way=st.sampled_from(sorted(WAYS)))
def test_any_data_comes_back_or_is_too_large(data: bytes, most: int, way: str) -> None:
    if len(data) > most:
        with pytest.raises(BodyTooLarge):
            decompressed(WAYS[way](data), most)
    else:
        assert decompressed(WAYS[way](data), most) == data


def test_a_bomb_is_never_made() -> None:
    """64 MiB, of which 64 KiB and a byte are made at most."""
    maker = zlib.compressobj()
    bomb = b"".join(maker.compress(bytes(1 << 20)) for _ in range(64)) + maker.flush()
    with pytest.raises(BodyTooLarge):
        decompressed(bomb, 1 << 16)


def test_an_empty_encoding_is_none() -> None:
    assert encoding_of("") is encoding_of("identity") is encoding_of(" , Identity") is None
    with pytest.raises(UnknownEncoding):
        encoding_of("brotli")
