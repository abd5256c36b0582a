"""The facts of a real machine: this one, once; and the parts that can be asked alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from api.cli.doctor import gathering


class _Server(BaseHTTPRequestHandler):
    server_version, sys_version = "penstock", ""

    def version_string(self) -> str:
        return "penstock"

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port on which somebody listens and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def report(taken: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """The exit code and what a run on this machine printed; a port is taken, a folder holds no model."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "half").mkdir()
    (folder / "half" / "config.json").write_text("{")
    command = [sys.executable, "-m", "api", "doctor", "--json"]
    done = subprocess.run(
        [*command, "--port", str(taken), "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_a_taken_port_is_why_this_machine_could_not_serve(
    report: tuple[int, dict[str, Any]], taken: int
) -> None:
    status, found = report
    problems = [one for one in found["findings"] if one["level"] == "problem"]
    assert [one["topic"] for one in problems] == [f"port {taken}"]
    assert status == 1
    assert found["serves"] is False


def test_the_embedded_model_can_be_served(report: tuple[int, dict[str, Any]]) -> None:
    assert {"name": "embedded", "reason": None} in report[1]["models"]


def test_a_folder_that_is_no_model_is_listed_with_the_reason(report: tuple[int, dict[str, Any]]) -> None:
    half = next(one for one in report[1]["models"] if one["name"] == "half")
    assert "config.json" in half["reason"]


def test_the_machine_is_described(report: tuple[int, dict[str, Any]]) -> None:
    found = report[1]
    assert found["device"]["kind"] in ("cpu", "metal", "cuda")
    assert 0 < found["memory"]["engine_bytes"] <= found["memory"]["physical_bytes"]


def test_a_penstock_is_known_by_what_it_answers() -> None:
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert gathering.port_fact(server.server_port).state == "penstock"
        server.shutdown()


def test_a_port_that_another_program_has_on_all_addresses_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS lets SO_REUSEADDR bind 127.0.0.1 beside another program's *, and clients find either."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
        monkeypatch.setattr(socket.socket, "listen", lambda *_: None)
        assert gathering.port_fact(int(other.getsockname()[1])).state == "taken"


def test_a_free_port_is_free() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = int(listener.getsockname()[1])
    assert gathering.port_fact(port).state == "free"


def test_our_own_requirements_are_met_and_include_the_extra_of_the_back_end() -> None:
    found = {pin.package: pin for pin in gathering.pins(["mlx-cpu"])}
    assert found["trio"].accepted
    assert "mlx-lm" in found
    assert "pytest" not in found, "of no extra that brings a back end"
    assert ("scipy-openblas32" in found) == sys.platform.startswith("linux")


def test_a_package_that_is_not_installed_asks_for_nothing() -> None:
    assert gathering.pins(["mlx-cpu"], "no-such-package-of-ours") == ()


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    caches = next(disk for disk in gathering._disks() if disk.what == "caches")
    assert caches.folder == tmp_path / "none" / "penstock"
    assert caches.writable
    assert caches.free_bytes > 0
    assert not (tmp_path / "none").exists()
