"""Whether the service runs, how long, and in how much memory."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import click
import httpx

from api.cli.errors import OperatorError
from api.cli.process_table import ps
from api.cli.service.managers import Manager, ManagerState, polls
from api.cli.service.service_options import ServiceOptions
from scheduler.shared.gigabytes import gigabytes

_PROBE_SECONDS = 5.0
_READY_SECONDS = 900.0
_ERROR = "penstock: "
"""The prefix of what `serve` prints when it cannot start."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    name: str
    manager: ManagerState
    up: str
    """How long its process has run, as `ps` writes it; empty without a process."""
    options: ServiceOptions
    url: str | None
    ready: str
    """The status in the answer of `/ready`; empty for an engine, which has no port."""
    is_ready: bool


def status_of(manager: Manager, options: ServiceOptions, url: str | None) -> ServiceStatus:
    """Look at the service. An engine, which has no `url`, is ready if it runs."""
    state = manager.state()
    ready, is_ready = ("", state.pid is not None) if url is None else probe(url)
    up = "" if state.pid is None else ps("-p", str(state.pid), "-o", "etime=").strip()
    return ServiceStatus(options.name, state, up, options, url, ready, is_ready)


def probe(url: str) -> tuple[str, bool]:
    """Ask `/ready`. Return its status as text, and whether the server is ready."""
    try:
        answer = httpx.get(f"{url}/ready", timeout=_PROBE_SECONDS, trust_env=False)
        return str(answer.json().get("status", answer.status_code)), answer.status_code == 200
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        return f"no answer ({type(error).__name__})", False


def lines_of(found: ServiceStatus) -> list[str]:
    """Return the status for a person."""
    by = found.manager
    shown = [f"service    {found.name}: {by.text}"]
    if by.restarts:
        shown.append(f"restarts   {by.restarts}")
    shown.append(f"process    {'none' if by.pid is None else f'{by.pid}, up {found.up}'}")
    shown.append(f"program    {' '.join(found.options.program)}")
    shown.append(f"arguments  {' '.join(found.options.arguments) or 'none'}")
    if found.url is not None:
        shown.append(f"ready      {found.ready}, at {found.url}")
    if by.memory_bytes is not None:
        shown.append(f"memory     {gigabytes(by.memory_bytes)}, of all its processes")
    return shown


def start(manager: Manager, before: int | None, url: str | None) -> None:
    """Start the service, and wait until a process other than `before` is ready or, without `url`, runs.
    Raise OperatorError if it ended, or is not ready after a quarter of an hour."""
    manager.start()
    look = "look at penstock service logs; penstock service uninstall removes it"
    for _ in polls(_READY_SECONDS):
        state = manager.state()
        if state.pid not in (None, before) and (url is None or probe(url)[1]):
            click.echo(f"ready      {url}" if url else "runs       its server says whether it has joined")
            return
        if not state.is_active:
            raise OperatorError(
                f"the service did not start: it is {state.text}{_last_words(manager)}\n{look}"
            )
    raise OperatorError(f"the service is not ready after {_READY_SECONDS:g} s, but may become so\n{look}")


def _last_words(manager: Manager) -> str:
    """Return the last error of `serve` in the log as ` (penstock: ...)`, or an empty string."""
    try:
        command = manager.log_command(20, follow=False)
        log = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = [line[line.index(_ERROR) :] for line in log.splitlines() if _ERROR in line]
    return f" ({found[-1]})" if found else ""
