"""Clients that never stop asking while the service below them is upgraded:
`python -m tests.end_to_end.upgrade_under_load --clients 200`, or `make upgrade`.

Half of them open a connection for each request, half keep theirs. An answer that is not whole counts,
whatever the reason: refused, cut, another status, another text than a server at rest gives.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import trio

from api.operator.service.control import Status
from api.operator.service.service_options import NAME
from api.operator.service.status import ask_status
from loadtests.processes import is_gone
from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import eventually

_START_SECONDS = 60
_PROMPTS = [f"prompt {number}" for number in range(8)]


@dataclass
class Supervised:
    """A running `penstock service run`, in folders of its own."""

    process: subprocess.Popen[str]
    environment: dict[str, str]
    port: int = 0
    lines: list[str] = field(default_factory=list)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command of `penstock service`."""
        return subprocess.run(
            [sys.executable, "-m", "api", "service", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment,
            check=False,
        )

    async def state(self) -> Status:
        found = await ask_status(Path(self.environment["XDG_RUNTIME_DIR"]) / NAME / "control")
        assert found is not None
        return found

    def serving_pid(self) -> int:
        return trio.run(self.state).serving.pid


@contextmanager
def supervised(folder: Path, *arguments: str) -> Iterator[Supervised]:
    """Run a service until the block is left; then nothing of it is there."""
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "api", "service", "run", "--", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    service = Supervised(process, environment)

    def read() -> None:
        for line in process.stdout or ():
            service.lines.append(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        eventually(
            lambda: process.poll() is not None or any(" serves, version" in one for one in service.lines),
            _START_SECONDS,
        )
        found = re.search(r"^listening +http://127.0.0.1:(\d+)", "\n".join(service.lines), re.M)
        assert found, service.lines
        service.port = int(found[1])
        yield service
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, service.lines[-20:]
    finally:
        process.kill()
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

    async def learn(self) -> None:
        """Ask for every text once, of a server at rest."""
        for prompt in _PROMPTS:
            answer = await ask(self.port, prompt, max_tokens=self.tokens)
            assert answer.finish_reason == "length", answer
            self._texts[prompt] = answer.text

    async def run(self, clients: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60)
        async with (
            httpx.AsyncClient(limits=limits, timeout=120, trust_env=False) as http,
            trio.open_nursery() as nursery,
        ):
            for number in range(clients):
                prompt = _PROMPTS[number % len(_PROMPTS)]
                nursery.start_soon(self._ask_on, prompt, http if number % 2 else None)

    async def _ask_on(self, prompt: str, http: httpx.AsyncClient | None) -> None:
        while not self.over:
            began = trio.current_time()
            try:
                answer = await (
                    ask(self.port, prompt, max_tokens=self.tokens)
                    if http is None
                    else self._ask_kept(http, prompt)
                )
            except (OSError, trio.BrokenResourceError, httpx.TransportError) as error:
                self.faults[f"{'new' if http is None else 'kept'}: {error!r}"] += 1
                continue
            self.longest_seconds = max(self.longest_seconds, trio.current_time() - began)
            if answer.status != 200:
                self.faults[f"status {answer.status}"] += 1
            elif answer.finish_reason != "length" or answer.events[-1] != "[DONE]":
                self.faults["cut"] += 1
            elif answer.text != self._texts[prompt]:
                self.faults["another text"] += 1
            else:
                self.whole += 1

    async def _ask_kept(self, http: httpx.AsyncClient, prompt: str) -> Answer:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": True,
        }
        response = await http.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body)
        return Answer(response.status_code, response.content)


async def beneath(
    service: Supervised, clients: Clients, count: int, steps: list[tuple[str, ...]]
) -> list[int]:
    """Run each command of `penstock service` while the clients ask, and let them go on until no process
    retires. Return the commands' exit codes."""
    codes: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clients.run, count)
        for step in steps:
            await _more(clients, count)
            done = await trio.to_thread.run_sync(partial(service.command, *step))
            codes.append(done.returncode)
            print(f"{' '.join(step)}: exit {done.returncode}; {(done.stdout + done.stderr).strip()[-300:]}")
            await _more(clients, count)
            print(f"  {clients.whole} whole, {dict(clients.faults)}, longest {clients.longest_seconds:.1f} s")
        clients.over = True
    # Idle connections of the clients are closed now.
    with trio.fail_after(90):
        while (await service.state()).retiring:  # noqa: ASYNC110
            await trio.sleep(0.1)
    return codes


async def _more(clients: Clients, count: int) -> None:
    """Wait until every client has had another answer, in the mean."""
    target = clients.whole + sum(clients.faults.values()) + count
    with trio.fail_after(120):
        while clients.whole + sum(clients.faults.values()) < target:  # noqa: ASYNC110
            await trio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--step-seconds", type=float, default=0.25)
    given = parser.parse_args()
    plan = f"step_seconds={given.step_seconds}"
    slots = str(max(32, given.clients))
    with (
        tempfile.TemporaryDirectory() as folder,
        supervised(Path(folder), "--engine", "scripted", "--scripted", plan, "--max-slots", slots) as service,
    ):
        clients = Clients(service.port, given.tokens)
        trio.run(clients.learn)
        first = service.serving_pid()
        same = ("--", "--port", str(service.port), "--engine", "scripted", "--scripted", plan, "--max-slots")
        codes = trio.run(
            beneath,
            service,
            clients,
            given.clients,
            [
                ("upgrade",),
                ("upgrade", *same, "no number"),
                ("upgrade", "--program", "/bin/false"),
                ("upgrade", "--order", "one-at-a-time", *same, slots),
                ("upgrade", "--order", "one-at-a-time", "--program", "/bin/false"),
            ],
        )
        assert codes == [0, 2, 1, 0, 1], codes
        assert is_gone(first)
        print(f"{clients.whole} answers whole, {clients.faults.total()} not: {dict(clients.faults)}")
        assert not clients.faults


if __name__ == "__main__":
    main()
