"""Pictures, sounds and files in messages, as one line of text for a model that reads text only.

`[image, 640×480 PNG: this model reads text only]`. Nothing is fetched, and of the data only the first bytes
are decoded, so that a screenshot costs what its line costs. The same part is always the same line: agents
send a screenshot again with every later turn, and the prefix cache must find it.
"""

from __future__ import annotations

import binascii

LOOKED_AT_BYTES = 1 << 16
"""Bound on the bytes of one part that are looked at. A photograph's size stands behind its thumbnail; in most
other formats within 30 bytes."""
LARGEST_LOOKED_AT_BYTES = 8 << 20
"""A larger part is named by its length alone."""
_LONGEST_NAME = 120

_MAGIC = (
    (b"%PDF", "PDF"),
    (b"OggS", "OGG"),
    (b"fLaC", "FLAC"),
    (b"ID3", "MP3"),
    (b"\xff\xfb", "MP3"),
    (b"\xff\xf3", "MP3"),
    (b"PK\x03\x04", "ZIP"),
)
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame, whose header has the picture's size."""
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a length."""


def note(kind: str, what: str = "", name: str | None = None) -> str:
    """Return the line. `kind`: image, audio, video or document; `what`: from `of_data` or `of_url`; `name`:
    the file's, as the client gives it."""
    return f"[{kind}{_quoted(name)}{what}: this model reads text only]"


def of_url(url: str) -> str:
    """Return the note about a URL, which may be a `data:` URL. Others are neither fetched nor quoted."""
    if url[:5].lower() != "data:":
        return " by URL"
    comma = url.find(",", 0, 1024)
    if comma < 0 or not url[:comma].lower().endswith(";base64"):
        return f", {len(url)} bytes"
    return of_data(url, comma + 1)


def of_file(data: str) -> str:
    """Return the note about a file, which comes as a `data:` URL or as its base64 text alone."""
    return of_url(data) if data[:5].lower() == "data:" else of_data(data)


def of_data(data: str, start: int = 0) -> str:
    """Return the note about the base64 text in `data` from `start` on."""
    length = _decoded_bytes(data, start)
    if length > LARGEST_LOOKED_AT_BYTES:
        return f", {length} bytes"
    head = _head(data, start)
    if (picture := _picture(head)) is not None:
        width, height, form = picture
        return f", {width}×{height} {form}"
    form = _form(head)
    return f", {length} bytes {form}" if form else f", {length} bytes"


def _quoted(name: str | None) -> str:
    """Quote a string on one line, whatever is in it."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in name or "").split())
    return f' "{plain[:_LONGEST_NAME]}"' if plain else ""


def _decoded_bytes(data: str, start: int) -> int:
    padding = 2 if data.endswith("==") else int(data.endswith("="))
    return max(0, (len(data) - start) * 3 // 4 - padding)


def _head(data: str, start: int) -> bytes:
    """Return the first bytes, decoded, or none if the text is not base64."""
    letters = data[start : start + LOOKED_AT_BYTES // 3 * 4]
    try:
        plain = "".join(letters.split()).rstrip("=").encode("ascii")
        return binascii.a2b_base64(plain[: len(plain) // 4 * 4])
    except ValueError:
        return b""


def _form(head: bytes) -> str:
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "WAV"
    if head[4:8] == b"ftyp":
        return "MP4"
    return next((form for magic, form in _MAGIC if head.startswith(magic)), "")


def _picture(head: bytes) -> tuple[int, int, str] | None:
    """Return width, height and format, or None if the format is unknown or the part has no size."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return _big(head, 16, 4), _big(head, 20, 4), "PNG"
    if head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        return _little(head, 6, 2), _little(head, 8, 2), "GIF"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg(head)
    return None


def _webp(head: bytes) -> tuple[int, int, str] | None:
    match head[12:16]:
        case b"VP8X":
            return 1 + _little(head, 24, 3), 1 + _little(head, 27, 3), "WebP"
        case b"VP8L":
            bits = _little(head, 21, 4)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), "WebP"
        case b"VP8 ":
            return _little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF, "WebP"
        case _:
            return None


def _jpeg(head: bytes) -> tuple[int, int, str] | None:
    """Go from segment to segment up to the frame: each step moves on, so it ends with what was looked at."""
    place = 2
    while place + 9 <= len(head) and head[place] == 0xFF:
        marker = head[place + 1]
        if marker == 0xFF:
            place += 1
        elif marker in _JPEG_FRAMES:
            return _big(head, place + 7, 2), _big(head, place + 5, 2), "JPEG"
        elif marker in _JPEG_ALONE:
            place += 2
        else:
            place += 2 + max(2, _big(head, place + 2, 2))
    return None


def _big(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "big")


def _little(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "little")
