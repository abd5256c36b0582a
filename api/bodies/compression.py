"""Decompress a body (`Content-Encoding`) within the bound on bodies: gzip and deflate, which the standard
library has."""

from __future__ import annotations

import zlib

KNOWN = "gzip, deflate"
"""For `Accept-Encoding` of a refusal."""
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_RAW = -zlib.MAX_WBITS
_NAMES = frozenset({"gzip", "x-gzip", "deflate"})


class UnknownEncoding(ValueError):
    """The body's encoding, or two of them, cannot be undone here."""


class BodyTooLarge(ValueError):
    """The decompressed body is longer than a body may be."""


def encoding_of(header: str) -> str | None:
    """Return the one encoding of a `Content-Encoding` header, None for a plain body. Raise
    UnknownEncoding."""
    names = [name for part in header.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if not names:
        return None
    if len(names) > 1 or names[0] not in _NAMES:
        raise UnknownEncoding(header)
    return names[0]


def decompressed(body: bytes, most_bytes: int) -> bytes:
    """Return the body behind gzip or deflate, which some clients send without zlib's header. Raise
    BodyTooLarge before more than `most_bytes` are made, and ValueError for what is not compressed."""
    try:
        return _inflated(body, _GZIP_OR_ZLIB, most_bytes)
    except zlib.error as error:
        try:
            return _inflated(body, _RAW, most_bytes)
        except zlib.error:
            raise ValueError(f"the body cannot be decompressed: {error}") from error


def _inflated(body: bytes, window_bits: int, most_bytes: int) -> bytes:
    made: list[bytes] = []
    left = most_bytes
    while body:
        # A gzip body may have several members, one after the other.
        member = zlib.decompressobj(window_bits)
        piece = member.decompress(body, left + 1)
        if len(piece) > left:
            raise BodyTooLarge
        if not member.eof:
            raise zlib.error("it ends too early")
        made.append(piece)
        left -= len(piece)
        body = member.unused_data
    return b"".join(made)
