"""Rates and percentiles from snapshots, and the stream that they come from."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.cli.top.figures import Figures, RecentSamples, sparkline
from api.cli.top.snapshots import CacheSnapshot, History, LiveEvents, NotALiveStream, ServerSnapshot

BODY = (
    b'event: snapshot\ndata: {"time": 1, "generated_tokens": 2, "model": "tiny", "slots": 8.0,'
    b' "running": [{"id": "x", "engine": null, "new_field": [1]}],'
    b' "history": {"since": [3], "generated": [5]}}\n\n'
    b"event: news\ndata: what nobody knows\n\n"
    b'event: cache\ndata: {"enabled": true, "tokens": 5, "shared_prefixes": []}\n\n'
)


@given(st.lists(st.integers(0, len(BODY)), max_size=20))
@settings(derandomize=True)
def test_events_do_not_depend_on_where_the_stream_is_cut(cuts: list[int]) -> None:
    """Unknown events and fields are skipped, missing ones have a default."""
    reader, found, start = LiveEvents(), list[ServerSnapshot | CacheSnapshot](), 0
    for end in [*sorted(cuts), len(BODY)]:
        found += reader.feed(BODY[start:end])
        start = end
    snapshot, cache = found
    assert isinstance(snapshot, ServerSnapshot)
    assert (snapshot.model, snapshot.slots, snapshot.running[0].id) == ("tiny", 8.0, "x")
    assert (snapshot.queue.requests, snapshot.history.generated) == (0, [5.0])
    assert cache == CacheSnapshot(enabled=True, tokens=5)


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"time": "now", "generated_tokens": 1}', b"\xff"])
def test_another_stream_is_refused(data: bytes) -> None:
    with pytest.raises(NotALiveStream):
        LiveEvents().feed(b"event: snapshot\ndata: " + data + b"\n\n")


def figures(*snapshots: ServerSnapshot) -> Figures:
    found = RecentSamples()
    for one in snapshots:
        found.add(one)
    return found.figures()


def test_drafts_are_those_of_the_last_snapshots() -> None:
    """Tokens of a row in a step, and the share that was accepted; nothing where nothing was drafted."""

    def drafted(tokens: float, proposed: float, accepted: float) -> ServerSnapshot:
        return ServerSnapshot(0, tokens, draft_tokens=proposed, accepted_draft_tokens=accepted)

    before = drafted(1000, 900, 0)
    assert figures(before, drafted(1100, 980, 60)).drafts == (2.5, 0.75)
    assert figures(before, drafted(1100, 900, 0)).drafts is None
    assert figures(before).drafts is None
    late = [drafted(1100, 980, 60)] * 20
    assert figures(before, *late).drafts is None, "it was before the last ones"


def test_rates_are_over_the_last_ten_seconds() -> None:
    """All seconds count, however many came at once; percentiles are the last ones."""
    first = History(
        generated=[100.0] * 9, prefilled=[90.0] * 9, cached=[10.0] * 9, ttft_p50=[1.0], ttft_p95=[2.0]
    )
    later = History(
        generated=[0.0] * 5, prefilled=[0.0] * 5, cached=[30.0] * 5, ttft_p50=[0.1], ttft_p95=[0.2]
    )
    found = figures(ServerSnapshot(9, 900, history=first), ServerSnapshot(14, 900, history=later))
    assert (found.output_rate, found.prefill_rate, found.cached_rate) == (50.0, 45.0, 20.0)
    assert found.cached_share == 200 / 650
    assert found.ttft_seconds == (0.1, 0.2)
    assert found.output_rates == (100.0,) * 9 + (0.0,) * 5


def test_what_was_not_observed_is_none() -> None:
    nothing = figures(ServerSnapshot(5, 100, history=History(ttft_p50=[None], ttft_p95=[None])))
    assert nothing == figures(ServerSnapshot(5, 100)) == Figures(None, None, None, None, None, None, ())
    idle = figures(ServerSnapshot(5, 100, history=History(generated=[0.0], prefilled=[0.0], cached=[0.0])))
    assert (idle.output_rate, idle.cached_share) == (0.0, None)


@given(st.lists(st.floats(0, 1e9), max_size=80), st.integers(-5, 100))
@settings(derandomize=True)
def test_a_sparkline_fits_its_columns(values: list[float], columns: int) -> None:
    assert len(sparkline(values, columns)) == min(len(values), max(0, columns))


def test_a_sparkline_begins_at_zero() -> None:
    assert sparkline([0, 4, 8], 3) == "▁▅█"
    assert sparkline([0, 0], 3) == "▁▁"
