"""The facts of a real machine: this one, once; and the parts that can be asked alone."""

from __future__ import annotations

import json
import os
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

from api.cli.doctor import facts


class _Server(BaseHTTPRequestHandler):
    server_version, sys_version = "penstock", ""

    def version_string(self) -> str:
        return "penstock"

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("content-length", "7")
        self.end_headers()
        self.wfile.write(b"loading")

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
        [*command, "--port", str(taken), "--models-folder", str(folder)],
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


def test_this_machine_and_a_folder_that_is_no_model_are_described(report: tuple[int, dict[str, Any]]) -> None:
    found = {one["topic"]: one["what"] for one in report[1]["findings"]}
    assert "GB" in found["memory"]
    assert found["device"]
    assert "config.json" in found["half"]


def test_a_penstock_is_known_by_what_it_answers() -> None:
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert facts.port_fact(server.server_port) == facts.Port(server.server_port, "penstock", "loading")
        server.shutdown()


def test_a_port_that_another_program_has_on_all_addresses_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS lets SO_REUSEADDR bind 127.0.0.1 beside another program's *, and clients find either."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
        monkeypatch.setattr(socket.socket, "listen", lambda *_: None)
        assert facts.port_fact(int(other.getsockname()[1])).state == "taken"


def test_a_free_port_is_free() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = int(listener.getsockname()[1])
    assert facts.port_fact(port).state == "free"


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    caches = facts.disk("caches", tmp_path / "none" / "penstock")
    assert caches.writable
    assert caches.free_bytes > 0
    assert not (tmp_path / "none").exists()


def test_the_newest_log_is_named_with_its_last_error(tmp_path: Path) -> None:
    assert facts.last_log(tmp_path / "none") is None
    assert facts.last_log(tmp_path) is None
    for age, text in enumerate(
        ("[error    ] first\n[error    ] second\n[info     ] ready\n", "[error ] old")
    ):
        file = tmp_path / f"{age}.log"
        file.write_text(text)
        os.utime(file, (1000 - age, 1000 - age))
    assert facts.last_log(tmp_path) == facts.Log(tmp_path / "0.log", "[error ] second")
