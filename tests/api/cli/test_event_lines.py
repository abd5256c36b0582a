"""Lines of a stream of events, wherever its body is cut."""

from __future__ import annotations

import pytest

from api.cli import event_lines
from api.cli.event_lines import EndlessLine, EventLines

BODY = (
    b': queued 3\r\n\r\nevent: snapshot\ndata: {"a": 1}\n\n'
    b':\ndata:{"b":\ndata: "\xc3\xa9\xe2\x80\xa8\xc2\x85"}\n\ndata: [DO'
)


def test_a_body_means_the_same_wherever_it_is_cut() -> None:
    """What is not whole yet is not there, and only a line feed ends a line (not U+2028, not U+0085)."""
    whole = [
        (b":", b"queued 3"),
        (b"", b""),
        (b"event", b"snapshot"),
        (b"data", b'{"a": 1}'),
        (b"", b""),
        (b":", b""),
        (b"data", b'{"b":'),
        (b"data", b'"\xc3\xa9\xe2\x80\xa8\xc2\x85"}'),
        (b"", b""),
    ]
    for cut in range(len(BODY)):
        lines = EventLines()
        assert [*lines.feed(BODY[:cut]), *lines.feed(BODY[cut:])] == whole
    assert [*EventLines().data(BODY)] == [b'{"a": 1}', b'{"b":', b'"\xc3\xa9\xe2\x80\xa8\xc2\x85"}']


def test_a_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_lines, "_MOST_LINE_BYTES", 100)
    lines = EventLines()
    assert [*lines.feed(b"data: " + b"x" * 90)] == []
    with pytest.raises(EndlessLine):
        list(lines.feed(b"x" * 10))
