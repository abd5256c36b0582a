"""The target's own metrics, beside its clients' figures."""

from __future__ import annotations

import pytest

from loadtests.measure import measure
from loadtests.record import ServerSample
from tests.loadtests.recorded import request, run


def scrape(at: float, **samples: float) -> ServerSample:
    return ServerSample(at=at, samples=samples)


def test_penstocks_metrics_lie_beside_the_clients() -> None:
    """Growth between the scrapes, by label, and the largest queue."""
    before = {
        "penstock_generated_tokens_total": 100.0,
        "penstock_prefilled_tokens_total": 10.0,
        'penstock_requests_total{outcome="length"}': 5.0,
        "penstock_time_to_first_token_seconds_sum": 1.0,
        "penstock_time_to_first_token_seconds_count": 1.0,
        "penstock_queued_requests": 7.0,
    }
    after = before | {
        "penstock_generated_tokens_total": 102.0,
        "penstock_prefilled_tokens_total": 40.0,
        'penstock_requests_total{outcome="length"}': 6.0,
        "penstock_time_to_first_token_seconds_sum": 1.4,
        "penstock_time_to_first_token_seconds_count": 2.0,
        "penstock_queued_requests": 0.0,
    }
    asked = request(0, 0.0, 0.5, 0.6, finish_reason="length", prompt_tokens=50, cached_tokens=20)
    found = measure(run(asked, server=(scrape(0.0, **before), scrape(1.0, **after)))).server
    assert [(row.label, row.server, row.client) for row in found] == [
        ("Prefilled tokens", 30.0, 30),
        ("Generated tokens", 2.0, 2),
        ("Mean TTFT", pytest.approx(0.4), 0.5),
        ("Requests ended: length", 1.0, 1),
        ("Longest queue", 7.0, None),
    ]


def test_vllms_metrics_are_summed_over_engines_and_survive_a_restart() -> None:
    """A counter that fell was reset; its value since is growth."""
    name = "vllm:generation_tokens_total"
    found = measure(
        run(
            server=(
                scrape(0.0, **{f'{name}{{engine="0"}}': 10.0, f'{name}{{engine="1"}}': 10.0}),
                scrape(1.0, **{f'{name}{{engine="0"}}': 15.0, f'{name}{{engine="1"}}': 10.0}),
                scrape(2.0, **{f'{name}{{engine="0"}}': 3.0}),
            )
        )
    ).server
    assert [(row.label, row.server) for row in found] == [("Generated tokens", 8.0)]


def test_an_engine_that_leaves_or_joins_is_no_reset() -> None:
    """The others' counters go on: what they counted before the run is no growth."""
    name = "penstock_generated_tokens_total"
    found = measure(
        run(
            server=(
                scrape(0.0, **{f'{name}{{engine="0"}}': 1000.0, f'{name}{{engine="1"}}': 1000.0}),
                scrape(1.0, **{f'{name}{{engine="0"}}': 1005.0, f'{name}{{engine="1"}}': 1002.0}),
                scrape(2.0, **{f'{name}{{engine="1"}}': 1004.0, f'{name}{{engine="2"}}': 3.0}),
            )
        )
    ).server
    assert [(row.label, row.server) for row in found] == [("Generated tokens", 5.0 + 4.0 + 3.0)]


def test_a_target_without_metrics_has_no_such_table() -> None:
    """Nor does one with a single successful scrape."""
    assert measure(run()).server == ()
    assert measure(run(server=(scrape(0.0, **{"penstock_generated_tokens_total": 5.0}),))).server == ()
