"""`penstock service` and `serve` on a simulated Mac: launchd's agent from its installation to its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from loadtests.processes import is_gone
from tests.end_to_end.serving import eventually, serving
from tests.macos.__main__ import ROOT, SIMULATED

pytestmark = [
    pytest.mark.skipif(
        os.environ.get(SIMULATED) != "1", reason="`python -m tests.macos tests/macos` runs it"
    ),
    pytest.mark.timeout(180),
]
SERVED = ("--engine", "scripted", "--drain-seconds", "5")


@dataclass
class Mac:
    home: Path

    def pid(self) -> int:
        return int((self.home / "launchd/job").read_text().split()[-1])

    def penstock(self, *arguments: str) -> None:
        environment = {**os.environ, "HOME": str(self.home), "FAKE_LAUNCHCTL": str(self.home / "launchd")}
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            environment.pop(name, None)
        command = [sys.executable, "-m", "api", "service", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Mac]:
    """Over ssh: nobody is logged in at the screen."""
    launchd = tmp_path / "launchd"
    launchd.mkdir()
    (launchd / "domains").write_text(f"user/{os.getuid()}")
    yield Mac(tmp_path)
    if (launchd / "job").exists():
        with suppress(ProcessLookupError):
            os.kill(int((launchd / "job").read_text().split()[-1]), signal.SIGKILL)


def test_an_agent_is_installed_restarted_and_removed(mac: Mac) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (mac.home / "launchd/refusals").write_text("5 37")
    mac.penstock("install", "--", "--port", str(port), *SERVED)
    eventually(lambda: ready(port), 60)
    mac.penstock("status")
    before = mac.pid()
    mac.penstock("install", "--", "--port", str(port), "--max-slots", "3", *SERVED)
    after = mac.pid()
    assert (is_gone(before), before != after) == (True, True)
    eventually(lambda: ready(port), 60)
    mac.penstock("uninstall")
    assert is_gone(after), "its file is removed when it has ended"
    assert not list(mac.home.rglob("*.plist"))


def test_a_mac_is_kept_awake_for_a_request(tmp_path: Path) -> None:
    said = tmp_path / "caffeinated"
    slow = ("--engine", "scripted", "--scripted", "step_seconds=0.02")
    with serving(*slow, environment={"CAFFEINATED": str(said)}) as served:
        assert not said.exists()
        for _ in range(2):
            assert served.post(max_tokens=75)[0] == 200
        eventually(said.exists)
        assert said.read_text() == "120\n", "once for both"
