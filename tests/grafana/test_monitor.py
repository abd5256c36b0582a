"""`make monitor`: one command, Prometheus beside a running server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.end_to_end.serving import eventually, serving
from tests.grafana.expressions import GRAFANA
from tests.grafana.programs import program


def _has(port: int, promql: str) -> bool:
    """Whether the Prometheus there is up and has such a series."""
    query = urlencode({"query": promql})
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=10) as answer:
            return b'"result":[]' not in answer.read()
    except URLError:
        return False


@pytest.mark.timeout(120)
def test_prometheus_scrapes_the_server_with_the_rules(tmp_path: Path) -> None:
    """Without a Grafana it says what to do with the dashboards. It ends its children when it ends."""
    program("prometheus")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with serving("--engine", "scripted") as served:
        variables = {
            "TARGET": f"127.0.0.1:{served.port}",
            "PROMETHEUS_PORT": str(port),
            "DATA": str(tmp_path / "data"),
        }
        process = subprocess.Popen(
            ["bash", str(GRAFANA / "monitor")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        try:
            eventually(lambda: _has(port, 'up{job="penstock"} == 1'), 60)
            assert _has(port, "penstock_engine_up == 1")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=20)
    assert process.returncode == 0
    assert not _has(port, "up")
