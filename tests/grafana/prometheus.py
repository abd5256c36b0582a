"""A real Prometheus beside a test's server, with the shipped configuration and rules."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.end_to_end.serving import eventually
from tests.grafana.expressions import GRAFANA
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
    """The shipped rules and configuration, with shorter intervals."""
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
