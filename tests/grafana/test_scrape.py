"""A real Prometheus scrapes a running server; every panel has data, and the scrape is cheap."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.end_to_end.serving import Served, eventually, serving
from tests.grafana.expressions import expressions, filled_in
from tests.grafana.programs import program
from tests.grafana.prometheus import prometheus


def _load(served: Served, rounds: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        for status, _ in pool.map(lambda n: served.post(max_tokens=8 + n % 8, unknown=n), range(rounds)):
            assert status == 200


@pytest.mark.timeout(180)
def test_every_expression_has_data(tmp_path: Path) -> None:
    """Panels and recording rules return data; alerts are valid; vLLM's series are there as well."""
    program("prometheus")
    options = ("--engine", "scripted", "--scripted", "step_seconds=0.002", "--metrics-compat", "vllm")
    with (
        serving(*options, "--metrics-tenants", "acme") as served,
        prometheus(f"127.0.0.1:{served.port}", tmp_path) as collector,
    ):
        started = time.time()
        eventually(lambda: collector.has("penstock_engine_step_seconds_count"), 30)
        _load(served, 64)
        eventually(lambda: collector.has("rate(penstock_generated_tokens_total[1m]) > 0"), 30)
        _load(served, 16)
        missing = list(expressions())

        def all_answered() -> bool:
            # A rate needs two scrapes of its series.
            nonlocal missing
            empty = [one for one in missing if not collector.query(filled_in(one.promql))]
            missing = [one for one in empty if not one.alert]
            return not missing

        with suppress(AssertionError):
            eventually(all_answered, 15)
        assert missing == []
        assert collector.query("vllm:time_to_first_token_seconds_count")
        exemplars = collector.query(
            "penstock_time_to_first_token_seconds_bucket",
            "query_exemplars",
            start=started - 5,
            end=time.time() + 5,
        )
        assert exemplars[0]["exemplars"][0]["labels"]["request_id"].startswith("req_")
        (cost,) = collector.query("scrape_duration_seconds")
        # 5 ms on an idle machine; the bound is for a shared one.
        assert float(cost["value"][1]) < 0.5
        print("scrape seconds", cost["value"][1])
