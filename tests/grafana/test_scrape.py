"""A real Prometheus scrapes a running server; every panel has data, and the scrape costs next to nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.end_to_end.serving import Served, eventually, serving
from tests.grafana.expressions import GRAFANA, expressions, filled_in
from tests.grafana.programs import program


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, promql: str, path: str = "query", **more: Any) -> list[dict[str, Any]]:
        try:
            with urlopen(
                f"{self.url}/api/v1/{path}?{urlencode({'query': promql, **more})}", timeout=10
            ) as answer:
                body = json.loads(answer.read())
        except HTTPError as error:
            with error:
                raise AssertionError(f"{promql}: {error.read().decode()}") from error
        data = body["data"]
        found: list[dict[str, Any]] = data["result"] if isinstance(data, dict) else data
        return found

    def has(self, promql: str) -> bool:
        return bool(self.query(promql))

    def ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=10):
                return True
        except OSError:
            return False


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """With the rules and the configuration that are shipped, but for the pace."""
    command = program("prometheus")
    for path in (GRAFANA / "prometheus").glob("*.yml"):
        text = path.read_text("utf-8").replace("TARGET", f"'{target}'").replace("5s", "1s")
        (folder / path.name).write_text(text, "utf-8")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                command,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            collector = Prometheus(port)
            eventually(collector.ready, 30)
            yield collector
        finally:
            process.terminate()
            process.wait(20)


def _load(served: Served, rounds: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        for status, _ in pool.map(lambda n: served.post(max_tokens=8 + n % 8), range(rounds)):
            assert status == 200


@pytest.mark.timeout(180)
def test_every_expression_has_data(tmp_path: Path) -> None:
    """Panels and recording rules return something; alerts are understood; the series are vLLM's as well."""
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
            # A rate wants two scrapes of its series.
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
        assert exemplars[0]["exemplars"][0]["labels"]["request_id"].startswith("chatcmpl-")
        (cost,) = collector.query("scrape_duration_seconds")
        # 5 ms on an idle machine; the bound is for one that is shared.
        assert float(cost["value"][1]) < 0.5
        print("scrape seconds", cost["value"][1])
