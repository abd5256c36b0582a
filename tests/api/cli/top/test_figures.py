"""Rates and percentiles from snapshots, and the stream that they come from."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.cli.top.figures import SnapshotWindow, quantile, sparkline
from api.cli.top.snapshots import Buckets, CacheSnapshot, LiveEvents, NotALiveStream, ServerSnapshot

BODY = (
    b'event: snapshot\ndata: {"time": 1, "generated_tokens": 2, "model": "tiny", "slots": 8.0,'
    b' "running": [{"id": "x", "engine": null, "new_field": [1]}], "history": {"since": 3},'
    b' "ttft": [["0.1", 1], ["+Inf", 2]]}\n\n'
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
    assert snapshot.queue.requests == 0
    assert cache == CacheSnapshot(enabled=True, tokens=5)


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"time": "now", "generated_tokens": 1}', b"\xff"])
def test_another_stream_is_refused(data: bytes) -> None:
    with pytest.raises(NotALiveStream):
        LiveEvents().feed(b"event: snapshot\ndata: " + data + b"\n\n")


def window(*snapshots: ServerSnapshot) -> SnapshotWindow:
    found = SnapshotWindow()
    for one in snapshots:
        found.add(one)
    return found


def at(
    time: float, tokens: float, *, prefilled: float = 0, cached: float = 0, model: str = "m"
) -> ServerSnapshot:
    return ServerSnapshot(time, tokens, prefilled, cached, model)


def test_drafts_are_those_of_the_window() -> None:
    """Tokens of a row in a step, and the share that was accepted; nothing where nothing was drafted."""

    def drafted(time: float, tokens: float, proposed: float, accepted: float) -> ServerSnapshot:
        return ServerSnapshot(time, tokens, draft_tokens=proposed, accepted_draft_tokens=accepted)

    before = drafted(0, 1000, 900, 0)
    assert window(before, drafted(5, 1100, 980, 60)).figures().drafts == (2.5, 0.75)
    assert window(before, drafted(5, 1100, 900, 0)).figures().drafts is None
    assert window(before).figures().drafts is None


def test_rates_are_over_the_last_ten_seconds() -> None:
    figures = window(
        at(0, 0), at(10, 1000), at(15, 1500, prefilled=30, cached=70), at(20, 1500, prefilled=50, cached=150)
    ).figures()
    assert (figures.output_rate, figures.prefill_rate, figures.cached_rate) == (50.0, 5.0, 15.0)
    assert figures.cached_share == 0.75
    assert figures.output_rates == (100.0, 100.0, 0.0)


def test_one_snapshot_has_no_rate() -> None:
    figures = window(at(5, 100)).figures()
    assert (figures.output_rate, figures.cached_share, figures.ttft_seconds) == (None, None, None)


@pytest.mark.parametrize("later", [at(1, 500), at(30, 5), at(30, 500, model="other")])
def test_a_restarted_server_and_another_model_begin_anew(later: ServerSnapshot) -> None:
    assert window(at(10, 100), at(20, 400), later).figures().output_rate is None


EDGES = ["0.1", "1.0", "+Inf"]


def buckets(*counts: float) -> Buckets:
    return list(zip(EDGES, counts, strict=True))


@pytest.mark.parametrize(
    ("then", "now", "share", "seconds"),
    [
        (buckets(0, 0, 0), buckets(10, 10, 10), 0.5, 0.05),
        (buckets(10, 10, 10), buckets(10, 20, 20), 0.5, 0.55),
        (buckets(0, 0, 0), buckets(0, 0, 4), 0.5, 1.0),
        (buckets(5, 5, 5), buckets(5, 5, 5), 0.5, None),
        ([], buckets(1, 1, 1), 0.5, None),
        ([], [], 0.5, None),
    ],
)
def test_a_percentile_is_of_what_is_new(
    then: Buckets, now: Buckets, share: float, seconds: float | None
) -> None:
    assert quantile(then, now, share) == (None if seconds is None else pytest.approx(seconds))


@given(st.lists(st.floats(0, 1e9), max_size=80), st.integers(-5, 100))
@settings(derandomize=True)
def test_a_sparkline_fits_its_columns(values: list[float], columns: int) -> None:
    assert len(sparkline(values, columns)) == min(len(values), max(0, columns))


def test_a_sparkline_begins_at_zero() -> None:
    assert sparkline([0, 4, 8], 3) == "▁▅█"
    assert sparkline([0, 0], 3) == "▁▁"
