"""A server that a command starts: how, what it says where it does not start, and when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from api.cli.errors import OperatorError
from api.cli.running_server import Address
from api.cli.started_server import ServerStart, _doing, found_or_started, started, tail

PARENT = """
import os, sys, time
from rich.console import Console
from api.cli.started_server import ServerStart, started
with started(ServerStart(("--engine", "scripted"), None, os.environ), Console()) as server:
    print(server.url, flush=True)
    time.sleep(600)
"""


def test_the_users_arguments_prevail() -> None:
    command = ServerStart(("--host", "0.0.0.0", "--model", "x"), None, {}).command
    assert command[1:4] == ["-m", "api.cli.child_server", "serve"]
    assert command[-4:] == ["--host", "0.0.0.0", "--model", "x"]
    assert command[command.index("--port") + 1] == "0"


@pytest.mark.parametrize(
    ("key", "variable", "child"),
    [
        (None, None, None),
        (None, "acme:k", "acme:k"),
        ("k", "acme:k", "acme:k"),
        ("k", None, "default:k admin"),
        ("k", "acme:other", "default:k admin"),
    ],
)
def test_the_child_knows_the_key_that_is_sent(
    key: str | None, variable: str | None, child: str | None
) -> None:
    environment = {"PENSTOCK_URL": "http://x"} | ({} if variable is None else {"PENSTOCK_API_KEY": variable})
    got = ServerStart((), key, environment).child_environment
    assert got.get("PENSTOCK_API_KEY") == child
    assert "PENSTOCK_URL" not in got


def test_a_named_server_that_is_not_there_is_an_error() -> None:
    """None is started in its place."""
    nowhere = Address("http://127.0.0.1:9", given=True)
    with (
        pytest.raises(OperatorError, match="`penstock serve` starts one"),
        found_or_started(nowhere, (), Console(), {}),
    ):
        pass


def test_a_start_that_fails_shows_how_its_log_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left but that log, which others cannot read. The user's folder may have packages of our
    names."""
    for name in ("api", "scheduler"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    monkeypatch.chdir(tmp_path / "project")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    start = ServerStart(("--max-slots", "none"), None, environment)
    with pytest.raises(OperatorError, match="exited with status 2") as caught, started(start, Console()):
        pass
    assert "--max-slots (or --max-num-seqs" in str(caught.value)
    (log,) = (tmp_path / "penstock" / "logs").iterdir()
    assert str(log) in str(caught.value)
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Which cannot end it itself."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment) as parent:
        try:
            assert parent.stdout is not None
            url = parent.stdout.readline().decode().strip()
            assert httpx.get(f"{url}/ready", timeout=10.0, trust_env=False).status_code == 200
        finally:
            parent.kill()
    deadline = time.monotonic() + 60
    while is_there(url):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_there(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/health", timeout=10.0, trust_env=False).status_code)
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("lines", "doing"),
    [
        ("penstock 0.2.0\n", ""),
        ("download   SmolLM2 comes once: 93 MB\n", "SmolLM2 comes once: 93 MB"),
        ("download   SmolLM2: 93 MB\n40 MB of 93 MB, 4.0 MB/s\n", "40 MB of 93 MB, 4.0 MB/s"),
        ("x [info     ] engine_loading   engine=0 model=None stage='reading weights'\n", "reading weights"),
    ],
)
def test_a_start_says_what_it_waits_for(lines: str, doing: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"earlier\n{lines}x [info     ] model_state\n")
    assert _doing(log) == doing


def test_the_end_of_a_log_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 5000 + b"\n" + b"line\n" * 9999)
    assert tail(log).splitlines() == ["  line"] * 12
    log.write_bytes(b"")
    assert tail(log) == "  (it wrote nothing)"
