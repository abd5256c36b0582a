"""The lines of a stream of server-sent events, from pieces of its body that may be cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator

_MOST_LINE_BYTES = 64 << 20


class EndlessLine(Exception):
    """A line is longer than any that a server sends."""


class EventLines:
    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the field and the value of each whole line: `:` is a comment's field, and the line that ends
        an event has an empty one. Raise EndlessLine."""
        self._rest += data
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            for line in lines:
                field, _, value = line.rstrip(b"\r").partition(b":")
                yield field.strip() or line[:1].strip(), value.strip()
        if len(self._rest) > _MOST_LINE_BYTES:
            raise EndlessLine

    def data(self, data: bytes) -> Iterator[bytes]:
        """Yield each event's data, in one line, as every chat server sends it."""
        return (value for field, value in self.feed(data) if field == b"data")
