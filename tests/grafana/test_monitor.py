"""`make monitor`: one command, Prometheus beside a running server, and Grafana if it is installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.serving import eventually, serving
from tests.grafana.expressions import GRAFANA
from tests.grafana.programs import program
from tests.grafana.prometheus import Prometheus

STUB = """#!/bin/sh
# Stands in for Grafana's server: prints how it was started, and stays.
{ echo "$@"; env | grep -E '^(GF|PENSTOCK)_'; } >"$STUB_SAYS.new"
mv "$STUB_SAYS.new" "$STUB_SAYS"
exec sleep 600
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def monitor(
    folder: Path, target: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], Prometheus]]:
    """The command as `make monitor` runs it. Interrupted as by Ctrl-C if it is still there."""
    program("prometheus")
    port = free_port()
    variables = {"TARGET": target, "PROMETHEUS_PORT": str(port), "DATA": str(folder / "data")}
    process = subprocess.Popen(
        ["bash", str(GRAFANA / "monitor")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables, **environment},
        start_new_session=True,
    )
    try:
        collector = Prometheus(port)
        eventually(collector.ready, 30)
        yield process, collector
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.mark.timeout(120)
def test_prometheus_scrapes_the_server_with_the_rules(tmp_path: Path) -> None:
    """Without a Grafana it says what to do with the dashboards. It ends its children when it ends."""
    with serving("--engine", "scripted") as served:
        target = f"127.0.0.1:{served.port}"
        with monitor(tmp_path, target) as (process, collector):
            eventually(lambda: collector.has('up{job="penstock"} == 1'), 30)
            assert collector.has("penstock_engine_up == 1")
        assert process.returncode == 0
        assert not collector.ready()


@pytest.mark.timeout(120)
def test_a_grafana_that_is_installed_is_started_with_all_that_it_needs(tmp_path: Path) -> None:
    """Its home, our provisioning, the data source's address and the dashboards' folder; no sign-in."""
    binaries, home, says = tmp_path / "bin", tmp_path / "home", tmp_path / "says"
    binaries.mkdir()
    home.mkdir()
    (binaries / "grafana").write_text(STUB)
    (binaries / "grafana").chmod(0o755)
    environment = {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "GRAFANA_HOME": str(home),
        "GRAFANA_PORT": "3999",
        "STUB_SAYS": str(says),
    }
    with monitor(tmp_path, "127.0.0.1:1", **environment) as (_, collector):
        eventually(says.exists, 30)
        arguments, *variables = says.read_text("utf-8").splitlines()
    assert arguments == f"server --homepath {home}"
    said = dict(line.split("=", 1) for line in variables)
    assert (said["GF_SERVER_HTTP_ADDR"], said["GF_SERVER_HTTP_PORT"]) == ("127.0.0.1", "3999")
    assert said["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert said["PENSTOCK_PROMETHEUS"] == collector.url
    boards = sorted(Path(said["PENSTOCK_DASHBOARDS"]).glob("*.json"))
    assert len(boards) == 5
    provisioning = Path(said["GF_PATHS_PROVISIONING"])
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "$PENSTOCK_PROMETHEUS"
    (folder,) = yaml.safe_load((provisioning / "dashboards" / "penstock.yml").read_text())["providers"]
    assert folder["options"]["path"] == "$PENSTOCK_DASHBOARDS"
    for board in boards:
        variables = json.loads(board.read_text("utf-8"))["templating"]["list"]
        assert variables[0]["query"] == source["type"], "the dashboards ask another kind of source"
