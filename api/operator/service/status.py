"""Whether the service runs, which version, how long, and in how much memory."""

from __future__ import annotations

import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import msgspec
import trio

from api.operator.errors import OperatorError
from api.operator.service import environment_file
from api.operator.service.control import AskStatus, ServeState, Status, asked
from api.operator.service.managers import Manager, ManagerState, manager_of
from api.operator.service.serve_arguments import checked, url_of
from api.operator.service.service_options import Places, Platform
from api.operator.service.upgrade_room import tree_bytes

_PROBE_SECONDS = 5.0
_POLL_SECONDS = 0.25
_ERROR = "penstock: "
"""Before what `serve` says when it cannot start."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    name: str
    manager: ManagerState | None
    """None: no service manager here."""
    supervisor: Status | None
    """None: it does not run."""
    url: str | None
    ready: str
    """What `/ready` says."""
    is_ready: bool
    memory_bytes: int | None


async def ask_status(control: Path) -> Status | None:
    """Return what the supervisor says; None if it does not run."""
    try:
        async with asked(control, AskStatus()) as replies:
            reply = await replies.next()
    except OperatorError:
        return None
    return reply if isinstance(reply, Status) else None


def described(
    name: str, places: Places, platform: Platform, system: bool, *, as_json: bool
) -> tuple[str, bool]:
    """Return the text of `status`, and whether the service is ready."""
    found = _status(name, places, platform, system)
    if not as_json:
        return "\n".join(lines(found)), found.is_ready
    body = asdict(found) | {"supervisor": msgspec.to_builtins(found.supervisor)}
    return msgspec.json.format(msgspec.json.encode(body)).decode(), found.is_ready


def _status(name: str, places: Places, platform: Platform, system: bool) -> ServiceStatus:
    try:
        manager: ManagerState | None = manager_of(platform, name, places, system=system).state()
    except OperatorError:
        manager = None
    supervisor = trio.run(ask_status, places.control)
    if supervisor is None:
        return ServiceStatus(name, manager, None, None, "not running", False, None)
    settings = checked(supervisor.serving.arguments, environment_file.read(places.environment))
    url = url_of(settings)
    ready, is_ready = probe(url)
    if supervisor.serving.version is None:
        ready, is_ready = "starting", False
    return ServiceStatus(name, manager, supervisor, url, ready, is_ready, tree_bytes(supervisor.pid))


def probe(url: str) -> tuple[str, bool]:
    """Ask `/ready`."""
    try:
        answer = httpx.get(f"{url}/ready", timeout=_PROBE_SECONDS, trust_env=False)
        return str(answer.json().get("status", answer.status_code)), answer.status_code == 200
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        return f"no answer ({type(error).__name__})", False


def lines(found: ServiceStatus) -> list[str]:
    """Return the status for a person."""
    by = found.manager
    said = [f"service    {found.name}: {'no service manager here' if by is None else by.text}"]
    if by is not None and by.restarts:
        said.append(f"restarts   {by.restarts}")
    if found.supervisor is None:
        return [*said, "process    none"]
    serving = found.supervisor.serving
    said.append(f"process    {_process(serving)}")
    said.append(f"program    {' '.join(serving.program)}")
    said.append(f"arguments  {' '.join(serving.arguments) or 'none'}")
    said.append(f"ready      {found.ready}, at {found.url}")
    if found.memory_bytes is not None:
        said.append(f"memory     {found.memory_bytes / (1 << 30):.2f} GiB, of all its processes")
    return said + [f"retiring   {_process(old)}" for old in found.supervisor.retiring]


def _process(state: ServeState) -> str:
    return f"{state.pid}, version {state.version or 'not ready yet'}, up {duration(state.age_seconds)}"


def duration(seconds: float) -> str:
    """As `2 h 5 min`."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"


def wait_started(manager: Manager, places: Places, url: str, seconds: float) -> None:
    """Wait until the service that was just started is ready. Raise OperatorError if it ended, or is late."""
    deadline = time.monotonic() + seconds
    look = "look at penstock service logs; penstock service uninstall removes it"
    while time.monotonic() < deadline:
        supervisor = trio.run(ask_status, places.control)
        if supervisor is not None and supervisor.serving.version is not None and probe(url)[1]:
            return
        state = manager.state()
        if not state.is_active:
            raise OperatorError(
                f"the service did not start: it is {state.text}{_last_words(manager)}\n{look}"
            )
        time.sleep(_POLL_SECONDS)
    raise OperatorError(f"the service is not ready after {seconds:g} s; it may still become so\n{look}")


def _last_words(manager: Manager) -> str:
    """Return what the log says of an end, as ` (penstock: ...)`."""
    try:
        command = manager.log_command(20, follow=False)
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = [line[line.index(_ERROR) :] for line in said.splitlines() if _ERROR in line]
    return f" ({found[-1]})" if found else ""
