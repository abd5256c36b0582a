"""Figures against numbers computed by hand, and against laws that hold for any run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loadtests.figures import FIGURES, QUANTILES, measure, written, written_range
from loadtests.record import Outcome, RequestRecord, RunRecord
from tests.examples import examples
from tests.loadtests.recorded import request, run


def expect(record: RunRecord, **expected: float | None) -> None:
    found = measure(record).values
    for name, value in expected.items():
        assert found[name] == (value if value is None else pytest.approx(value)), name


MANY, FEW = request(0, 0.0, *(0.5 + 0.1 * token for token in range(10))), request(1, 0.0, 0.5, 1.4)
STALLED = request(0, 0.0, 0.5, 0.6, ended_at=5.6, outcome=Outcome.TIMED_OUT)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(
            [request(0, 1.0, 1.5, 1.6, 1.9, ended_at=2.0)],
            {
                "ttft_p50": 0.5,
                "itl_p50": 0.2,
                "itl_max": 0.3,
                "tpot_p50": 0.2,
                "e2e_p50": 1.0,
                "max_stall": 0.3,
            },
            id="three tokens",
        ),
        pytest.param([MANY, FEW], {"itl_p50": 0.1, "itl_max": 0.9}, id="over all samples, no mean of means"),
        pytest.param(
            [request(0, 0.0, 0.5, 1.3, output_tokens=5)],
            {"tpot_p50": 0.2, "itl_p50": 0.8},
            id="TPOT uses the server's count of tokens",
        ),
        pytest.param(
            [request(0, 0.0, 0.5, 1.0, output_tokens=None)],
            {"output_tokens_per_second": 0.2},
            id="deltas stand in where the server does not count",
        ),
        pytest.param(
            [STALLED],
            {"ttft_p50": 0.5, "max_stall": 5.0, "e2e_p50": None, "tpot_p50": None, "failed": 1},
            id="a broken stream counts for TTFT and stall alone",
        ),
    ],
)
def test_figures_are_those_computed_by_hand(
    asked: list[RequestRecord], expected: dict[str, float | None]
) -> None:
    expect(run(*asked), **expected)


def test_only_requests_of_the_window_count() -> None:
    """Neither the warm-up's, nor the tail's, nor an unmeasured population's."""
    record = run(
        *(request(0, 0.5, 1.5), request(1, 2.0, 2.2), request(2, 9.0, 9.9)),
        request(3, 3.0, 8.0, population="flood"),
        warm_up_seconds=1.0,
        steady_until=8.0,
        unmeasured=("flood",),
    )
    expect(record, sent=1, ok=1, ttft_max=0.2)
    ttft = {name: values["ttft_p50"] for name, values in measure(record).by_population.items()}
    assert ttft == {"agents": pytest.approx(0.2), "flood": pytest.approx(5.0)}


def test_a_session_lasts_from_its_first_send_to_its_last_end() -> None:
    """Gaps and subagents (the same session) included."""
    turns = (
        request(0, 1.0, 2.0, session="a", turn=1, session_turns=2),
        request(1, 2.0, 4.5, session="a", turn=1, session_turns=1),
        request(2, 3.0, 4.0, session="a", turn=2, session_turns=2),
    )
    expect(run(*turns), session_p50=3.5)
    # A session that was stopped or failed would look fast.
    stopped = request(0, 1.0, 2.0, session="a", turn=1, session_turns=5)
    failed = request(1, 1.0, 2.0, session="b", outcome=Outcome.CUT)
    expect(run(stopped, failed), session_p50=None)


def test_tokens_count_where_they_arrived() -> None:
    """Window 1 to 5 s. Of the first request two of four deltas arrive inside it; of the second all, in two
    deltas of three tokens each; of the third, sent inside, one of two."""
    record = run(
        request(0, 0.0, 0.2, 0.8, 1.2, 1.8),
        request(1, 2.0, 2.5, 3.0, output_tokens=6),
        request(2, 4.0, 4.5, 5.5),
        warm_up_seconds=1.0,
        steady_until=5.0,
    )
    expect(record, output_tokens_per_second=(2 + 6 + 1) / 4, requests_per_second=2 / 4)


def test_good_is_within_both_bounds() -> None:
    """Too late, too slow, failed, refused, and one that is good: a fifth."""
    asked = (
        *(request(0, 0.0, 1.5, 1.6), request(1, 0.0, 0.5, 1.5), request(4, 0.0, 0.5, 0.55)),
        *(request(2, 0.0, 0.5, outcome=Outcome.CUT), request(3, 0.0, outcome=Outcome.REFUSED)),
    )
    expect(run(*asked), slo_attainment=0.2, goodput=0.1, failed=1, refused=1, ok=3)


def test_the_cached_share_is_of_requests_that_report_both() -> None:
    """One that says nothing of its cache is in neither sum; more than the prompt counts as the prompt."""
    asked = (
        request(0, 0.0, 1.0, prompt_tokens=100, cached_tokens=50, reusable_share=0.8),
        request(1, 0.0, 1.0, prompt_tokens=100, cached_tokens=900, reusable_share=1.0),
        request(2, 0.0, 1.0, prompt_tokens=100),
    )
    expect(run(*asked), cached_share=0.75, cached_share_most=0.9)


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    sent_at = draw(st.floats(0, 10))
    stamps = [sent_at]
    for gap in draw(st.lists(st.floats(0, 3), max_size=6)):
        stamps.append(stamps[-1] + gap)
    changes: dict[str, Any] = {
        "outcome": draw(st.sampled_from(Outcome)),
        "population": draw(st.sampled_from(["a", "b"])),
        "tenant": draw(st.sampled_from(["x", "y", "z"])),
        "session": draw(st.sampled_from(["s", "t", "u"])),
        "output_tokens": draw(st.none() | st.integers(0, 20)),
        "prompt_tokens": draw(st.none() | st.integers(0, 1000)),
        "cached_tokens": draw(st.none() | st.integers(0, 2000)),
        "reusable_share": draw(st.floats(0, 1)),
    }
    return request(draw(st.integers(0, 10**9)), sent_at, *stamps[1:], **changes)


RUNS = st.builds(
    lambda asked, start, end: run(*asked, warm_up_seconds=start, steady_until=end, ended_at=12.0),
    st.lists(requests(), max_size=12, unique_by=lambda one: one.index),
    st.floats(0, 10),
    st.floats(0, 12),
)


@settings(max_examples=examples(150), deadline=None)
@given(RUNS)
def test_figures_keep_their_bounds_whatever_happened(record: RunRecord) -> None:
    """Shares and indices are in 0..1, percentiles in order, counts add up, nothing is NaN or negative; a
    looser SLO never makes less good."""
    measures = measure(record)
    for values in (measures.values, *measures.by_population.values()):
        for name, value in values.items():
            assert value is None or value >= 0, name
            if FIGURES[name].unit in ("share", "index") and value is not None:
                assert value <= 1 + 1e-9, name
    found = measures.values
    assert sum(found[name] or 0 for name in ("ok", "refused", "failed")) == found["sent"]
    for family in ("ttft", "itl", "tpot", "e2e", "session"):
        ordered = [found[f"{family}_{name}"] for name in QUANTILES]
        assert ordered == sorted(value for value in ordered if value is not None) or set(ordered) == {None}
    loose = measure(replace(record, ttft_slo_seconds=5.0, tpot_slo_seconds=5.0)).values
    assert (found["slo_attainment"] or 0) <= (loose["slo_attainment"] or 0)


def test_values_are_written_for_a_reader() -> None:
    """Three digits, their unit, and a dash for None; a range has one unit, the median's."""
    assert (written(None, "s"), written(0.9999, "s"), written(0.955, "share")) == ("–", "1.00 s", "95.5 %")
    assert written_range(0.905, 0.87, 1.146, "s") == "905 (870–1\u202f146) ms"
