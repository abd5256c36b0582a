"""The dashboards' figures match what the clients saw: a real server, the load tests' driver as the clients, a
real Prometheus, and the dashboards' own expressions."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from loadtests.client import default_client
from loadtests.driver import Driver
from loadtests.figures import output_tokens, percentile, tpot, ttft
from loadtests.record import Outcome, RequestRecord, RunRecord
from loadtests.scenario import Scenario
from loadtests.targets import EVERYTHING, Target
from scheduler.telemetry.metrics import ITL_SECONDS, LATENCY_SECONDS, TTFT_SECONDS
from tests.end_to_end.serving import Served, eventually, serving
from tests.grafana.expressions import GRAFANA, filled_in
from tests.grafana.programs import program
from tests.grafana.prometheus import Prometheus, prometheus

REQUESTS, SLOTS, CLIENTS = 40, 4, 12


def crowd() -> Scenario:
    """Three times as many clients as slots, answers of 10 to 60 tokens: waits from none to seconds."""
    return Scenario.model_validate(
        {
            "name": "figures",
            "description": "a queue, and answers of many lengths",
            "bounds": {"seconds": 60, "request_seconds": 60},
            "populations": [
                {
                    "name": "agents",
                    "arrivals": {"kind": "closed", "clients": CLIENTS},
                    "sessions": REQUESTS,
                    "output": {"least": 10, "most": 60},
                }
            ],
        }
    )


def drive(served: Served) -> RunRecord:
    target = Target("penstock", served.url, "random", knows=EVERYTHING)
    driver = Driver(crowd(), target, default_client(60), "salt", tokens_per_word=1.5)
    return trio.run(driver.run)


def panel(board: str, title: str, legend: str) -> str:
    """Evaluate a panel's expression, over a time that includes the whole run."""
    panels = json.loads((GRAFANA / "dashboards" / f"{board}.json").read_text("utf-8"))["panels"]
    (found,) = [one for one in panels if one["title"] == title]
    (target,) = [one for one in found["targets"] if one["legendFormat"] == legend]
    expression: str = target["expr"]
    return filled_in(expression, rate_interval="10m")


def shown(collector: Prometheus, expression: str) -> float:
    (series,) = collector.query(expression)
    return float(series["value"][1])


def near(edges: tuple[float, ...], seconds: float) -> tuple[float, float]:
    """Return the values that a histogram cannot distinguish from `seconds`: its bucket, and the two beside
    it, since a client's clock includes the connection and the last bytes' way as well, and may be on the
    other side of an edge."""
    place = bisect_left(edges, seconds)
    bounds = (0.0, *edges, float("inf"))
    return bounds[max(0, place - 1)], bounds[min(len(bounds) - 1, place + 2)]


def whole(request: RequestRecord) -> float | None:
    return request.ended_at - request.sent_at


Measure = Callable[[RequestRecord], float | None]
LATENCIES: tuple[tuple[str, tuple[float, ...], Measure], ...] = (
    ("Time to first token", TTFT_SECONDS, ttft),
    ("Time per output token", ITL_SECONDS, tpot),
    ("Whole request", LATENCY_SECONDS, whole),
)


@pytest.mark.timeout(240)
def test_dashboards_show_what_clients_saw(tmp_path: Path) -> None:
    """Tokens and outcomes exactly; latencies within the resolution of their buckets."""
    program("prometheus")
    options = ("--engine", "scripted", "--scripted", "step_seconds=0.02", "--max-slots", str(SLOTS))
    with serving(*options) as served, prometheus(f"127.0.0.1:{served.port}", tmp_path) as collector:
        # The first scrape must be before the first request: a rate is a difference.
        eventually(lambda: collector.has("penstock_requests_total"), 30)
        run = drive(served)
        assert [request.outcome for request in run.requests] == [Outcome.OK] * REQUESTS
        done = f'penstock_requests_total{{outcome="length"}} == {REQUESTS}'
        eventually(lambda: collector.has(done), 30)

        tokens = {
            "penstock_generated_tokens_total": sum(map(output_tokens, run.requests)),
            "penstock_prompt_tokens_total": sum(one.prompt_tokens or 0 for one in run.requests),
            "penstock_prefix_hit_tokens_total": sum(one.cached_tokens or 0 for one in run.requests),
            "penstock_request_output_tokens_sum": sum(map(output_tokens, run.requests)),
            "penstock_request_seconds_count": REQUESTS,
            "sum(penstock_requests_total)": REQUESTS,
        }
        assert {name: shown(collector, name) for name in tokens} == tokens

        for title, edges, measure in LATENCIES:
            samples = sorted(value for one in run.requests if (value := measure(one)) is not None)
            assert len(samples) == REQUESTS
            for share in (0.5, 0.95):
                displayed = shown(collector, panel("latency", title, f"p{share * 100:g}"))
                client = percentile(samples, share)
                least, most = near(edges, client)
                print(f"{title} p{share * 100:g}: clients {client:.3f}, dashboard {displayed:.3f}")
                assert least <= displayed <= most, (
                    f"{title} p{share * 100:g}: clients saw {client}, shown {displayed}"
                )


def test_a_bucket_and_its_neighbours_are_what_a_histogram_tells() -> None:
    """Otherwise the comparison above would hold for anything."""
    edges = (0.1, 0.5, 1.0, 2.5)
    assert near(edges, 0.05) == (0.0, 0.5)
    assert near(edges, 0.7) == (0.1, 2.5)
    assert near(edges, 9.0) == (1.0, float("inf"))
