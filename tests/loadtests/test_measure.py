"""Figures against numbers computed by hand, and against laws that hold for any run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loadtests.figures import written, written_range
from loadtests.measure import agents_sustained, measure
from loadtests.record import Outcome, RequestRecord, RunRecord
from tests.examples import examples
from tests.loadtests.recorded import request, run, simulated


def values(record: RunRecord) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in measure(record).figures}


def expect(record: RunRecord, **expected: float | None) -> None:
    found = values(record)
    for name, value in expected.items():
        assert found[name] == (value if value is None else pytest.approx(value)), name


# --- latencies


def test_latencies_of_one_request() -> None:
    """Sent at 1.0; deltas at 1.5, 1.6, 1.9; ended at 2.0; three tokens."""
    expect(
        run(request(0, 1.0, 1.5, 1.6, 1.9, ended_at=2.0)),
        ttft_p50=0.5,
        ttft_max=0.5,
        itl_p50=0.2,
        itl_max=0.3,
        tpot_p50=0.2,
        e2e_p50=1.0,
        session_p50=1.0,
        max_stall=0.3,
    )


def test_percentiles_are_over_all_samples_and_not_over_averages() -> None:
    """Gaps 0.1 (nine of them, one request) and 0.9 (one, another): the median is 0.1, not a mean of means."""
    many = request(0, 0.0, *(0.5 + 0.1 * token for token in range(10)))
    few = request(1, 0.0, 0.5, 1.4)
    expect(run(many, few), itl_p50=0.1, itl_max=0.9)


def test_one_token_and_one_delta_have_no_pace() -> None:
    """TPOT divides by tokens − 1, and excludes tokens that arrived all at once."""
    expect(run(request(0, 0.0, 0.5), request(1, 0.0, 0.5, output_tokens=8)), tpot_p50=None, itl_p50=None)


def test_tpot_uses_the_servers_count_of_tokens() -> None:
    """Two deltas of five tokens, 0.8 s apart: 0.2 s a token, though the gap is 0.8 s."""
    expect(run(request(0, 0.0, 0.5, 1.3, output_tokens=5)), tpot_p50=0.2, itl_p50=0.8)


def test_a_broken_stream_counts_for_ttft_and_stall_but_not_for_e2e() -> None:
    """Its first token counts, and its silence until the end."""
    stalled = request(0, 0.0, 0.5, 0.6, ended_at=5.6, outcome=Outcome.TIMED_OUT)
    expect(run(stalled), ttft_p50=0.5, itl_max=0.1, max_stall=5.0, e2e_p50=None, tpot_p50=None, failed=1)


def test_only_requests_of_the_window_count() -> None:
    """Neither the warm-up's, nor the tail's, nor an unmeasured population's."""
    record = run(
        request(0, 0.5, 1.5),
        request(1, 2.0, 2.2),
        request(2, 9.0, 9.9),
        request(3, 3.0, 8.0, population="flood"),
        warm_up_seconds=1.0,
        steady_until=8.0,
        unmeasured=("flood",),
    )
    expect(record, sent=1, ok=1, ttft_max=0.2)
    measures = measure(record)
    assert "1 of 4 requests count: agents, sent from 1.0 s to 8.0 s; not measured: flood" in measures.counted
    assert {name: figures[0].value for name, figures in measures.by_population.items()} == {
        "agents": pytest.approx(0.2),
        "flood": pytest.approx(5.0),
    }


# --- sessions


def test_a_session_lasts_from_its_first_send_to_its_last_end() -> None:
    """Gaps and subagents (the same session) included."""
    turns = (
        request(0, 1.0, 2.0, session="a", turn=1, session_turns=2),
        request(1, 2.0, 4.5, session="a", turn=1, session_turns=1),
        request(2, 3.0, 4.0, session="a", turn=2, session_turns=2),
    )
    expect(run(*turns), session_p50=3.5, turns_per_second=0.3)


def test_a_session_that_was_stopped_or_failed_is_not_complete() -> None:
    """A truncated session would look fast."""
    stopped = request(0, 1.0, 2.0, session="a", turn=1, session_turns=5)
    failed = request(1, 1.0, 2.0, session="b", outcome=Outcome.CUT)
    expect(run(stopped, failed), session_p50=None)


def test_single_turns_are_requests_and_no_turns() -> None:
    """Turns/s would repeat requests/s."""
    expect(run(request(0, 1.0, 2.0), request(1, 1.0, 3.0)), requests_per_second=0.2, turns_per_second=None)


# --- rates


def test_tokens_count_where_they_arrived() -> None:
    """Window 1 to 5 s. Of the first request two of four deltas arrive inside it; of the second all, in two
    deltas of three tokens each; of the third, sent inside, one of two."""
    record = run(
        request(0, 0.0, 0.2, 0.8, 1.2, 1.8, prompt_tokens=100),
        request(1, 2.0, 2.5, 3.0, output_tokens=6, prompt_tokens=50),
        request(2, 4.0, 4.5, 5.5, prompt_tokens=30),
        warm_up_seconds=1.0,
        steady_until=5.0,
    )
    expect(
        record,
        output_tokens_per_second=(2 + 6 + 1) / 4,
        total_tokens_per_second=(9 + 50 + 30) / 4,
        requests_per_second=2 / 4,
    )


def test_deltas_stand_in_for_tokens_where_the_server_does_not_count() -> None:
    """A peer without usage, or a stream that was cut before it."""
    record = run(request(0, 0.0, 0.5, 1.0, output_tokens=None), ended_at=2.0)
    expect(record, output_tokens_per_second=1.0, total_tokens_per_second=None)


def test_a_window_without_length_has_no_rates() -> None:
    """Interrupted in its warm-up."""
    record = run(request(0, 0.0, 0.5), warm_up_seconds=5.0, ended_at=1.0, steady_until=1.0)
    expect(record, output_tokens_per_second=None, goodput=None, slo_attainment=None, sent=0)


# --- goodput


def test_goodput_counts_what_was_sent() -> None:
    """The six are good, late, slow, failed, wrong and hung up. The last is left out of the denominator
    alone."""
    record = run(
        request(0, 0.0, 0.5, 0.6),
        request(1, 0.0, 1.5, 1.6),
        request(2, 0.0, 0.5, 0.7),
        request(3, 0.0, outcome=Outcome.HTTP_ERROR, status=500),
        request(4, 0.0, 0.5, 0.6, correct=False),
        request(5, 0.0, 0.5, outcome=Outcome.HUNG_UP),
    )
    expect(record, goodput=0.1, slo_attainment=1 / 5, sent=6, ok=4, hung_up=1, failed=1, refused=0, wrong=1)


def test_an_empty_answer_is_not_good() -> None:
    """It ended well without output."""
    expect(run(request(0, 0.0, output_tokens=0)), slo_attainment=0.0)


def test_the_slos_edge_is_within() -> None:
    """TTFT = 1 and TPOT = 0.25 exactly."""
    expect(run(request(0, 0.0, 1.0, 1.25), tpot_slo_seconds=0.25), slo_attainment=1.0)


# --- cache


def test_cached_shares_and_what_was_computed_again() -> None:
    """1000 of 2000 prompt tokens cached, 0.5·1000 + 0.9·1000 reusable: 70 %; again: 0 + (900 − 400)."""
    record = run(
        request(0, 0.0, 0.5, prompt_tokens=1000, cached_tokens=600, reusable_share=0.5),
        request(1, 0.0, 0.5, prompt_tokens=1000, cached_tokens=400, reusable_share=0.9),
        request(2, 0.0, 0.5, prompt_tokens=5000, reusable_share=1.0),
    )
    expect(record, cached_share=0.5, cached_share_most=0.7, prefilled_again=500)


def test_a_target_silent_about_its_cache_has_only_the_theoretical_share() -> None:
    """An unknown share is not a share of zero."""
    record = run(request(0, 0.0, 0.5, prompt_tokens=1000, reusable_share=0.25))
    expect(record, cached_share=None, cached_share_most=0.25, prefilled_again=None)


# --- tenants, aborts, failures


def test_fairness_over_tenants() -> None:
    """Tokens 1 and 3: 16 / (2·10); mean TTFTs 1 and 1: even. One tenant has no index."""
    one = request(0, 0.0, 1.0, tenant="a")
    other = request(1, 0.0, 1.0, 1.1, 1.2, tenant="b")
    expect(run(one, other), jain_tokens=0.8, jain_ttft=1.0)
    expect(run(one), jain_tokens=None, jain_ttft=None)


def test_a_starved_tenant_counts_with_nothing() -> None:
    """Two tenants, one of which got nothing: 1/2."""
    starved = request(1, 0.0, tenant="b", outcome=Outcome.TIMED_OUT)
    expect(run(request(0, 0.0, 1.0, tenant="a"), starved), jain_tokens=0.5, jain_ttft=None)


def test_abort_latency_is_of_those_that_hung_up() -> None:
    """As the target's own metrics report."""
    record = run(request(0, 0.0, outcome=Outcome.HUNG_UP, freed_after_seconds=0.25), request(1, 0.0, 0.5))
    expect(record, abort_p50=0.25, abort_max=0.25)


def test_failures_of_the_whole_run_are_counted_by_kind() -> None:
    """Refused connections in the warm-up are counted."""
    refused = [request(n, 0.1, outcome=Outcome.CONNECT_FAILED, detail="connection refused") for n in range(3)]
    broken = request(3, 6.0, outcome=Outcome.HTTP_ERROR, status=500, detail="oops")
    full = request(4, 6.0, outcome=Outcome.REFUSED, status=429)
    measures = measure(run(*refused, broken, full, request(5, 6.0, 6.5), warm_up_seconds=5.0))
    assert [(one.kind, one.count, one.example) for one in measures.failures] == [
        ("connect_failed", 3, "connection refused"),
        ("http_error 500", 1, "oops"),
        ("refused 429", 1, ""),
    ]
    assert measures.outcomes == {Outcome.OK: 1, Outcome.HTTP_ERROR: 1, Outcome.REFUSED: 1}
    assert measures.value("failed") == 1
    assert measures.value("refused") == 1


# --- any run


def test_a_run_without_requests_has_figures_without_values() -> None:
    """Counts are zero, rates are zero, all else is unknown; nothing divides by zero."""
    found = values(run())
    known = {name: value for name, value in found.items() if value is not None}
    assert {value for name, value in known.items() if not name.startswith("generator_")} == {0}
    assert found["slo_attainment"] is None


def test_every_figure_has_a_formula() -> None:
    """And percentiles have their number of samples."""
    figures = measure(simulated()).figures
    assert all(figure.formula and figure.label and figure.family for figure in figures)
    assert {figure.samples for figure in figures if figure.name.startswith("session_")} != {None}
    assert len({figure.name for figure in figures}) == len(figures)


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    sent_at = draw(st.floats(0, 10))
    stamps = [sent_at]
    for gap in draw(st.lists(st.floats(0, 3), max_size=6)):
        stamps.append(stamps[-1] + gap)
    prompt = draw(st.none() | st.integers(0, 1000))
    changes: dict[str, Any] = {
        "outcome": draw(st.sampled_from(Outcome)),
        "population": draw(st.sampled_from(["a", "b"])),
        "tenant": draw(st.sampled_from(["x", "y", "z"])),
        "session": draw(st.sampled_from(["s", "t", "u"])),
        "output_tokens": draw(st.none() | st.integers(0, 20)),
        "prompt_tokens": prompt,
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
    """Shares and indices are in 0..1, percentiles in order, counts add up, nothing is NaN or negative."""
    measures = measure(record)
    found = {figure.name: figure.value for figure in measures.figures}
    for figure in (*measures.figures, *(one for of in measures.by_population.values() for one in of)):
        assert figure.value is None or figure.value >= 0, figure.name
        if figure.unit in ("share", "index") and figure.value is not None:
            assert figure.value <= 1 + 1e-9, figure.name
    counts = (found["ok"], found["hung_up"], found["refused"], found["failed"])
    assert sum(value or 0 for value in counts) == found["sent"] == sum(measures.outcomes.values())
    for family in ("ttft", "itl", "tpot", "e2e", "session"):
        ordered = [found[f"{family}_{name}"] for name in ("p50", "p90", "p95", "p99", "max")]
        assert ordered == sorted(value for value in ordered if value is not None) or set(ordered) == {None}


@settings(max_examples=examples(100), deadline=None)
@given(RUNS)
def test_a_looser_slo_never_makes_less_good(record: RunRecord) -> None:
    """And goodput is attainment times the requests that did not hang up."""
    loose = replace(record, ttft_slo_seconds=5.0, tpot_slo_seconds=5.0)
    before, after = values(record), values(loose)
    assert (before["slo_attainment"] or 0) <= (after["slo_attainment"] or 0)
    wanted = (before["sent"] or 0) - (before["hung_up"] or 0)
    seconds = min(record.steady_until, record.ended_at) - record.warm_up_seconds
    if before["goodput"] is not None and before["slo_attainment"] is not None:
        assert before["goodput"] * seconds == pytest.approx(before["slo_attainment"] * wanted)


# --- agents sustained


@given(st.integers(0, 300), st.integers(1, 20), st.integers(1, 300))
def test_the_search_finds_the_last_number_that_reaches_the_target(limit: int, least: int, more: int) -> None:
    """For any falling attainment, each number is measured once and never out of bounds."""
    most = least + more
    asked: list[int] = []

    def attainment(number: int) -> float:
        asked.append(number)
        return 0.95 if number <= limit else 0.9499

    assert agents_sustained(attainment, least, most) == (0 if limit < least else min(limit, most))
    assert len(set(asked)) == len(asked) <= 20
    assert all(least <= number <= most for number in asked)


def test_the_search_refuses_bounds_that_hold_nothing() -> None:
    """Instead of returning 0, which would be a finding."""
    with pytest.raises(ValueError, match="no number of agents"):
        agents_sustained(lambda number: 1.0, 5, 4)


# --- writing


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (0.0123, "s", "12.3 ms"),
        (0.0, "s", "0.00 ms"),
        (0.9999, "s", "1.00 s"),
        (12.345, "s", "12.3 s"),
        (0.955, "share", "95.5 %"),
        (12345.6, "tokens/s", "12\u202f346 tokens/s"),
        (3, "requests", "3 requests"),
        (0.8, "index", "0.800"),
        (2.346, "ratio", "2.35×"),
    ],
)
def test_values_are_written_for_a_reader(value: float | None, unit: str, text: str) -> None:
    """Three digits, their unit, and a dash for None."""
    assert written(value, unit) == text


def test_a_range_has_one_unit() -> None:
    """The median's, so that three numbers compare at a glance."""
    assert written_range(0.905, 0.87, 1.146, "s") == "905 (870–1\u202f146) ms"
