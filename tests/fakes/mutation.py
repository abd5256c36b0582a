"""Mutated bytes, for parsers of foreign input."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def _edits(draw: st.DrawFn) -> tuple[float, float, bytes]:
    """The start of an edit, the number of bytes it removes, and the bytes it inserts."""
    return draw(st.floats(0, 1)), draw(st.sampled_from([0.0, 0.001, 0.05, 1.0])), draw(st.binary(max_size=12))


def mutations(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """`data` with one to four runs replaced, removed or inserted; removing all to the end is a truncation."""
    return st.builds(_applied, data, st.lists(_edits(), min_size=1, max_size=4))


def _applied(data: bytes, edits: list[tuple[float, float, bytes]]) -> bytes:
    for place, share, put in edits:
        at = int(place * len(data))
        data = data[:at] + put + data[at + round(share * len(data)) :]
    return data
