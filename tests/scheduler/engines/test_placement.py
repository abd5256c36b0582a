"""Where a request goes: pure arithmetic over what is known of the engines."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.placement import Candidate, estimated_seconds, least_seconds
from scheduler.engines.speeds import Speeds
from scheduler.shared.messages import StepCosts

CHUNK_TOKENS = 512


def measured(step_seconds: float = 0.02, row_seconds: float = 0.0, token_seconds: float = 0.001) -> Speeds:
    """Return the speeds of an engine that has run for some time."""
    return Speeds(CHUNK_TOKENS, StepCosts(step=step_seconds, row=row_seconds, token=token_seconds))


speeds = st.builds(
    measured,
    st.sampled_from([0.005, 0.05]),
    st.sampled_from([0.0, 0.001]),
    st.sampled_from([0.0001, 0.002]),
)
candidates = st.lists(
    st.builds(
        Candidate,
        st.uuids().map(str),
        st.integers(0, 40),
        st.integers(1, 32),
        st.integers(0, 50_000),
        st.integers(1, 50_000),
        speeds,
    ),
    min_size=1,
    max_size=5,
)


@given(candidates, st.floats(1, 2000), st.booleans())
def test_it_is_one_of_those_with_room_and_none_is_estimated_sooner(
    candidates: list[Candidate], output_tokens: float, returns: bool
) -> None:
    """Whatever engine the session had last."""
    last = candidates[0].engine if returns else None
    chosen = least_seconds(candidates, output_tokens, last)
    assert chosen in candidates
    seconds = {one.engine: estimated_seconds(one, output_tokens) for one in candidates}
    assert seconds[chosen.engine] <= min(seconds.values()) + 1e-6


@given(
    st.builds(Candidate, st.just("0"), st.integers(0, 40), st.just(8), *[st.integers(0, 9999)] * 2, speeds)
)
def test_more_to_compute_more_rows_or_a_longer_queue_is_never_sooner(one: Candidate) -> None:
    """In each of them by itself."""
    for worse in (
        replace(one, uncached_tokens=one.uncached_tokens + 100),
        replace(one, backlog_tokens=one.backlog_tokens + 100),
        replace(one, requests=one.requests + 1),
    ):
        assert estimated_seconds(worse, 100) >= estimated_seconds(one, 100)


def test_a_cached_prefix_outweighs_some_rows_but_not_a_wait_for_a_slot() -> None:
    """The request goes where its prefix is, until that engine is full."""
    engine = measured(step_seconds=0.02, row_seconds=0.001, token_seconds=0.001)
    warm = Candidate("warm", 6, 8, 0, 100, engine)
    cold = Candidate("cold", 0, 8, 0, 4000, engine)
    assert least_seconds([cold, warm], 200, None) is warm
    full = replace(warm, requests=24)
    assert least_seconds([cold, full], 200, None) is cold


def test_of_equal_engines_the_sessions_last_one_and_then_the_emptiest() -> None:
    """What the estimate of its cache does not see may be there."""
    engine = measured(row_seconds=0.0)
    one, two = Candidate("1", 2, 8, 0, 500, engine), Candidate("2", 2, 8, 0, 500, engine)
    assert least_seconds([one, two], 100, "2") is two
    # Without an answer to wait for, rows cost nothing.
    assert least_seconds([replace(one, requests=3), two], 0, None) is two


def test_in_a_burst_a_free_slot_elsewhere_is_sooner_than_a_slower_engines_pace() -> None:
    """All rows of the full engine have just begun: none ends soon. Later one does."""
    fast, slow = measured(step_seconds=0.02), measured(step_seconds=0.03)
    full = Candidate("fast", 8, 8, 0, 100, fast)
    free = Candidate("slow", 7, 8, 0, 100, slow)
    assert least_seconds([full, free], 300, None) is free
    ending = replace(full, furthest_tokens=290)
    assert estimated_seconds(ending, 300) < estimated_seconds(full, 300)
