"""A service whose sockets systemd has is restarted under clients that never stop asking: none is refused, no
accepted answer is cut, and no answer is another one than that of a server at rest.

systemd's own `systemd-socket-activate` opens the socket; a shell starts one process after another, as systemd
does. Half of the clients open a connection for each request, half keep theirs.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import trio

from loadtests.processes import children, is_gone
from tests.end_to_end.raw_client import Answer, answers
from tests.end_to_end.serving import eventually

TOKENS = 20
_PROMPTS = [f"prompt {number}" for number in range(8)]
_LIFE = """sh -c 'LISTEN_PID=$$ exec "$@"' sh "$@" || exit
"""
"""Each server has the socket as its own, as sd_listen_fds(3) says it."""

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="systemd is not installed"
)


@dataclass
class Service:
    """What systemd-socket-activate became: a shell, whose child serves."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str] = field(default_factory=list)

    def pid(self) -> int:
        """Return the server's."""
        (child,) = children(self.process.pid)
        return child

    def restart(self) -> None:
        """End the server, and return when the next one is ready."""
        before, ready = self.pid(), self._ready()
        os.kill(before, signal.SIGTERM)
        eventually(lambda: is_gone(before) and self._ready() > ready, 60)

    def _ready(self) -> int:
        return sum(line.startswith("listening ") for line in self.lines)


@contextmanager
def activated(*arguments: str, home: Path, lives: int) -> Iterator[Service]:
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = [sys.executable, "-m", "api", "serve", "--port", str(port), *arguments]
    process = subprocess.Popen(
        ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", "sh", "-c", lives * _LIFE, "sh", *serve],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    service = Service(process, port)

    def read() -> None:
        for line in process.stdout or ():
            service.lines.append(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        eventually(lambda: any("Listening on" in line for line in service.lines), 10)
        yield service
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(10)
        if process.stdout is not None:
            process.stdout.close()


@dataclass
class Clients:
    """Each asks for one stream after another until `over` is set."""

    port: int
    tokens: int
    whole: int = 0
    over: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    longest_seconds: float = 0.0
    _texts: dict[str, str] = field(default_factory=dict)

    def learn(self) -> None:
        """Ask for every text once, of a server at rest."""
        asked = [(prompt, {"max_tokens": self.tokens}) for prompt in _PROMPTS]
        for prompt, answer in zip(_PROMPTS, answers(self.port, asked), strict=True):
            assert answer.finish_reason == "length", answer
            self._texts[prompt] = answer.text

    async def run(self, clients: int) -> None:
        async with _http(kept=True) as kept, _http(kept=False) as fresh, trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(self._ask_on, _PROMPTS[number % len(_PROMPTS)], (fresh, kept)[number % 2])

    async def _ask_on(self, prompt: str, http: httpx.AsyncClient) -> None:
        said = [{"role": "user", "content": prompt}]
        body = {"messages": said, "max_tokens": self.tokens, "temperature": 0, "stream": True}
        while not self.over:
            began = trio.current_time()
            try:
                response = await http.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body)
            except httpx.TransportError as error:
                self.faults[repr(error)] += 1
                continue
            answer = Answer(response.status_code, response.content)
            self.longest_seconds = max(self.longest_seconds, trio.current_time() - began)
            if answer.status != 200:
                self.faults[f"status {answer.status}"] += 1
            elif answer.finish_reason != "length" or answer.events[-1] != "[DONE]":
                self.faults["cut"] += 1
            elif answer.text != self._texts[prompt]:
                self.faults["another text"] += 1
            else:
                self.whole += 1


def _http(*, kept: bool) -> httpx.AsyncClient:
    """A client that keeps its connections, or opens one for each request."""
    most = None if kept else 0
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=most, keepalive_expiry=60)
    return httpx.AsyncClient(limits=limits, timeout=120, trust_env=False)


async def _restarted(service: Service, clients: Clients, count: int, restarts: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clients.run, count)
        for _ in range(restarts):
            await _more(clients, count)
            await trio.to_thread.run_sync(service.restart)
        await _more(clients, 2 * count)
        clients.over = True


async def _more(clients: Clients, count: int) -> None:
    """Wait until every client has had another answer, in the mean."""
    target = clients.whole + sum(clients.faults.values()) + count
    with trio.fail_after(120):
        while clients.whole + sum(clients.faults.values()) < target:  # noqa: ASYNC110
            await trio.sleep(0.05)


@pytest.mark.parametrize(
    ("crowd", "restarts"),
    [pytest.param(24, 1, id="sample"), pytest.param(100, 2, id="whole", marks=pytest.mark.long)],
)
def test_a_restart_costs_no_client_anything(crowd: int, restarts: int, tmp_path: Path) -> None:
    """The first client starts the service; the last server ends, and the shell with it."""
    plan = ("--engine", "scripted", "--scripted", "step_seconds=0.05", "--max-slots", str(crowd))
    with activated(*plan, home=tmp_path, lives=restarts + 1) as service:
        clients = Clients(service.port, TOKENS)
        clients.learn()
        first = service.pid()
        trio.run(_restarted, service, clients, crowd, restarts)
        assert not clients.faults, (clients.faults, clients.whole, service.lines[-20:])
        assert clients.whole > (2 + restarts) * crowd
        assert service.pid() != first
        handed_over = sum("handing_over" in line for line in service.lines)
        os.kill(service.pid(), signal.SIGTERM)
        assert service.process.wait(30) == 0
        assert handed_over == restarts
        print(f"{clients.whole} answers, {clients.longest_seconds:.1f} s at most")
