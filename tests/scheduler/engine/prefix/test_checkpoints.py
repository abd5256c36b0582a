"""Where a prefill pauses so that its state can be kept."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.prefix.checkpoints import CHECKPOINT_EVERY_TOKENS, LEAST_GAP_TOKENS, checkpoints_of

_positions = st.lists(st.integers(0, 12_000), max_size=40)


@settings(derandomize=True, deadline=None)
@given(boundaries=_positions, shared=_positions, start=st.integers(0, 6000), rest=st.integers(1, 6000))
def test_stops_lie_inside_in_order_and_never_far_apart(
    boundaries: list[int], shared: list[int], start: int, rest: int
) -> None:
    """Whatever is asked for: ascending, after what is known, before the end, no stretch without one."""
    length = start + rest
    stops = checkpoints_of(boundaries, [position for position in shared if position < length], start, length)
    assert list(stops) == sorted(set(stops))
    assert all(start < stop < length for stop in stops)
    edges = [start, *stops, length]
    assert all(right - left <= CHECKPOINT_EVERY_TOKENS for left, right in pairwise(edges))
    inside = [position for position in boundaries if start < position < length]
    if inside:
        assert {min(inside), max(inside)} <= set(stops)


def test_a_conversation_stops_at_its_ends_and_now_and_then() -> None:
    """Two hundred short turns do not make two hundred short chunks."""
    turns = range(100, 4100, 20)
    stops = checkpoints_of(tuple(turns), [], 0, 4100)
    assert stops[0] == 100
    assert stops[-1] == turns[-1]
    assert len(stops) <= 2 + 4100 // LEAST_GAP_TOKENS


def test_prompts_that_part_within_a_few_tokens_share_one_stop() -> None:
    """The shallowest serves them all."""
    assert checkpoints_of((), [503, 500, 501, 900], 0, 1000) == (500, 900)
