"""The memory of a prefill chunk is learned from the chunks that ran."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.budget.learned import ChunkPeak, CopyPeak

_MB = 1 << 20


chunks = st.lists(
    st.tuples(st.integers(1, 512), st.sampled_from((0, 100, 100_000)), st.integers(0, 4 << 30)),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(chunks)
def test_the_last_chunk_s_need_is_never_below_what_it_took(
    observed: list[tuple[int, int, int]],
) -> None:
    peak = ChunkPeak(0, 512)
    for tokens, context, taken in observed:
        peak.observe(tokens, context, taken)
        assert peak.needed_bytes(tokens, context) >= taken - 1


def test_chunks_that_took_nothing_do_not_inflate_the_others() -> None:
    """Their buffers were there already. A worst ratio to a line through them predicted 14 GB of 60 MB."""
    peak = ChunkPeak(1000 * _MB, 1024)
    for at in range(200):
        peak.observe(8 + 7 * at % 1024, 50 * at, 0 if at % 3 else 60 * _MB)
    assert 59 * _MB <= peak.needed_bytes(1024, 10_000) <= 600 * _MB


@settings(deadline=None)
@given(chunks, st.integers(0, 4 << 30), st.integers(0, 100_000))
def test_the_fitting_chunk_is_the_largest_that_fits(
    observed: list[tuple[int, int, int]], room: int, context: int
) -> None:
    peak = ChunkPeak(100 * _MB, 512)
    for chunk in observed:
        peak.observe(*chunk)
    fitting = peak.fitting_tokens(room, context)
    assert fitting == 0 or peak.needed_bytes(fitting, context) <= room
    assert fitting == 512 or peak.needed_bytes(fitting + 1, context) > room


def test_rows_that_are_copied_need_room_for_the_copy() -> None:
    """Until one was seen, nothing is reserved, and all rows are expected to be copied; then as much for the
    rows of any later time, and never little. Steps that copy nothing do not make it forget."""
    copies = CopyPeak()
    assert (copies.needed_bytes(300 * _MB), copies.part) == (0, 1.0)
    copies.observe(100 * _MB, 80 * _MB)
    for _ in range(10_000):
        copies.observe(100 * _MB, _MB)
    assert (copies.needed_bytes(300 * _MB), copies.part) == (240 * _MB, 0.8)
    for _ in range(100):
        copies.observe(100 * _MB, 5 * _MB)
    assert copies.part == 0.25
