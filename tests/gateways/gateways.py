"""Starts a gateway with the lines of `docs/gateways.md`, in front of servers on loopback.

smg is installed in an environment of its own (`requirements.txt`), which `make test-all` builds; elsewhere
`GATEWAYS_PYTHON` may name its interpreter. nginx and HAProxy are the machine's, where it has them.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.grafana.programs import program

PAGE = Path(__file__).parents[2] / "docs" / "gateways.md"
START_SECONDS = 60
TRIES = 3
"""A port that was free a moment ago may be taken."""
PYTHON = Path(os.environ.get("GATEWAYS_PYTHON", Path(sys.prefix, "gateways", "bin", "python")))
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")
"""Debian keeps both where only root looks."""

Command = Callable[[Sequence[str], int, Path], list[str]]
"""From the servers' URLs, a port and a folder of its own to the command that serves on the port."""


def documented(language: str) -> str:
    """Return the block of the page's section about gateways in this language."""
    section = PAGE.read_text().partition("\n## Gateways\n")[2].partition("\n## ")[0]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.S | re.M)
    return str(block)


def smg(fronts: Sequence[str], port: int, folder: Path, more: Sequence[str] = ()) -> list[str]:
    """`more`: further options."""
    words = shlex.split(documented("sh").replace("\\\n", " "))
    assert words[:2] == ["smg", "launch"]
    urls = slice(words.index("--worker-urls") + 1, words.index("--policy"))
    words[urls] = fronts
    quiet = ("--host", "127.0.0.1", "--log-level", "warn", "--prometheus-host", "127.0.0.1")
    return [
        str(_smg()),
        "-m",
        *words,
        *more,
        *quiet,
        "--port",
        str(port),
        "--prometheus-port",
        str(_free_port()),
    ]


def _smg() -> Path:
    if not PYTHON.exists():
        pytest.skip("smg's environment is not there; 'make test-all' builds it")
    return PYTHON


def nginx(fronts: Sequence[str], port: int, folder: Path) -> list[str]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    text = documented("nginx").replace("listen 8080;", f"listen 127.0.0.1:{port};")
    server = _with_servers(text, "    server {front} max_fails=0;\n", fronts)
    file = folder / "nginx.conf"
    file.write_text(
        # One process: a worker would outlive the master that is killed.
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr warn;\n"
        f"events {{}}\nhttp {{ access_log off;\n{temporary}\n{server}}}\n"
    )
    return [_program("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(file)]


def haproxy(fronts: Sequence[str], port: int, folder: Path) -> list[str]:
    text = documented("haproxy").replace("bind :8080", f"bind 127.0.0.1:{port}")
    file = folder / "haproxy.cfg"
    file.write_text(_with_servers(text, "    server {name} {front}\n", fronts))
    return [_program("haproxy"), "-f", str(file)]


def require(command: Command) -> None:
    """Skip if its program is not there: before servers are started that nobody would stand before."""
    if command is smg:
        _smg()
    else:
        _program(command.__name__)


def _with_servers(text: str, line: str, fronts: Sequence[str]) -> str:
    """Replace the documented servers by `fronts`."""
    documented_lines = [line.format(name=name, front=f"{name}:8000") for name in ("mac-1", "mac-2")]
    assert "".join(documented_lines) in text
    hosts = [front.removeprefix("http://") for front in fronts]
    lines = [line.format(name=f"front-{number}", front=host) for number, host in enumerate(hosts)]
    return text.replace("".join(documented_lines), "".join(lines))


def _program(name: str) -> str:
    return program(name, package=name, folders=_SYSTEM_FOLDERS)


@contextmanager
def gateway(command: Command, fronts: Sequence[str], folder: Path) -> Iterator[str]:
    """Run it until the block is left; yield its URL when it answers for all the fronts. The machine's proxies
    do not apply."""
    for tried in range(TRIES):
        port = _free_port()
        inside = folder / str(tried)
        inside.mkdir()
        process = _started(command(fronts, port, inside), inside)
        try:
            url = f"http://127.0.0.1:{port}"
            if _answers(process, url, len(fronts)):
                yield url
                return
        finally:
            process.kill()
            process.wait()
    pytest.fail((inside / "log").read_text()[-4000:])


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _answers(process: subprocess.Popen[bytes], url: str, fronts: int) -> bool:
    """Wait until it serves the fronts' models, and smg has found all of them; false if it has ended. The time
    is a bound on failure."""
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(trust_env=False) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                found = client.get(f"{url}/readiness")
                if found.status_code == 404 and client.get(f"{url}/v1/models").status_code == 200:
                    return True
                if found.status_code == 200 and found.json()["healthy_workers"] == fronts:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
