"""`penstock service run`: what a service manager starts, and what works the same without one.

It opens the listening socket, starts `penstock serve` on it, answers `penstock service`'s other commands at
its control socket, and drains everything when it is asked to end.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from api.operator.errors import OperatorError
from api.operator.service import environment_file
from api.operator.service.control import (
    AskStatus,
    AskUpgrade,
    Order,
    Progress,
    Refused,
    Reply,
    ServeState,
    read_ask,
    send,
)
from api.operator.service.serve_process import Launcher, Output, Sockets, descriptors_of
from api.operator.service.supervisor import ServeCommand, Supervisor
from api.service_notice import ServiceNotice
from api.settings import ServeSettings
from api.version import own_version

_ASK_SECONDS = 10.0
_REPLY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    command: ServeCommand
    settings: ServeSettings
    """`command`'s arguments, checked."""
    run: Path
    """The folder of sockets."""
    environment: Path
    """The environment file."""
    output: Output
    """Takes the lines of the processes."""
    surroundings: dict[str, str]
    """The variables that this program itself was started with."""


async def run(options: RunOptions) -> int:
    """Return the exit status of the last `penstock serve`. Raise OperatorError if none can be started."""
    notice = ServiceNotice.of(os.environ)
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        options.surroundings.pop(name, None)
    settings = options.settings
    control = await control_socket(options.run)
    try:
        clients = await _listening(settings.host, settings.port)
        with_metrics = settings.metrics_port is not None
        metrics = await _listening(settings.host, settings.metrics_port or 0) if with_metrics else []
        sockets = Sockets(descriptors_of(clients), descriptors_of(metrics))
        async with trio.open_nursery() as nursery:

            def on_life(pid: int) -> None:
                if supervisor.is_serving(pid):
                    notice.send(WATCHDOG="1")

            def on_ready(state: ServeState) -> None:
                _say(options.output, f"process {state.pid} serves, version {state.version}")
                notice.send(READY="1", STATUS=f"process {state.pid}, version {state.version}")

            launch = Launcher(
                nursery, sockets, options.run, partial(_environment, options), options.output, on_life
            )
            supervisor = Supervisor(launch, on_ready)
            nursery.start_soon(_signalled, supervisor, notice)
            nursery.start_soon(trio.serve_listeners, partial(answer, supervisor, options.output), [control])
            nursery.start_soon(_live_while_changing, supervisor, notice)
            _say(options.output, f"penstock {own_version()} supervises; control socket in {options.run}")
            try:
                status = await supervisor.run(options.command)
            except OSError as error:
                raise OperatorError(f"cannot start {options.command.program[0]}: {error}") from error
            nursery.cancel_scope.cancel()
        return status
    finally:
        _remove(options.run / "control")


def _say(output: Output, text: str) -> None:
    output(f"service    {text}\n".encode())


def _environment(options: RunOptions) -> dict[str, str]:
    """Raise OSError, as a program that cannot be started: the service goes on with what it has."""
    try:
        return {**options.surroundings, **environment_file.read(options.environment)}
    except OperatorError as error:
        raise OSError(str(error)) from error


async def _listening(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise OperatorError(f"cannot listen on {host}:{port}: {error}") from error


async def _signalled(supervisor: Supervisor, notice: ServiceNotice) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            notice.send(STOPPING="1")
            supervisor.stop()


async def _live_while_changing(supervisor: Supervisor, notice: ServiceNotice) -> None:
    """While no process serves, none can report life, and nothing is wrong."""
    while notice.watchdog_seconds is not None:
        if supervisor.is_changing:
            notice.send(WATCHDOG="1")
        await trio.sleep(notice.watchdog_seconds / 4)


# ---- the control socket


async def control_socket(folder: Path) -> trio.SocketListener:
    path = folder / "control"
    try:
        _private_folder(folder)
        with suppress(OSError, RuntimeError):
            async with await trio.open_unix_socket(path):
                raise OperatorError(f"a service of this name runs already (it answers at {path})")
        _remove(path)
        control = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        await control.bind(str(path))
    except OSError as error:
        raise OperatorError(f"cannot open the control socket in {folder}: {error}") from error
    control.listen(16)
    return trio.SocketListener(control)


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise OperatorError(f"{folder} belongs to another user: a service is run by one")
    folder.chmod(0o700)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def answer(supervisor: Supervisor, output: Output, stream: trio.abc.Stream) -> None:
    """Answer one question. Nothing that a client does, and no fault here, ends the service."""
    try:
        async with stream:
            await _answer(supervisor, output, stream)
    except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass
    except* Exception as errors:
        _say(output, "".join(traceback.format_exception(errors)))


async def _answer(supervisor: Supervisor, output: Output, stream: trio.abc.Stream) -> None:
    try:
        with trio.fail_after(_ASK_SECONDS):
            ask = await read_ask(stream)
    except ValueError as error:
        await _reply(stream, Refused(f"the service is of another version: {error}"))
        return
    match ask:
        case AskStatus():
            await _reply(stream, supervisor.status())
        case AskUpgrade():
            await _upgrade(supervisor, ask, output, stream)
        case None:
            pass


async def _reply(stream: trio.abc.Stream, reply: Reply) -> None:
    with trio.fail_after(_REPLY_SECONDS):
        await send(stream, reply)


async def _upgrade(supervisor: Supervisor, ask: AskUpgrade, output: Output, stream: trio.abc.Stream) -> None:
    """A client that leaves before the new process serves takes an upgrade beside the old one back."""

    async def say(text: str) -> None:
        _say(output, text)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            await _reply(stream, Progress(text))

    results: list[Reply] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_gone, stream, nursery.cancel_scope)
        results.append(await supervisor.replace(ask, say))
        nursery.cancel_scope.cancel()
    if not results:
        then = "taken back" if ask.order is Order.BESIDE else "goes on"
        _say(output, f"upgrade: {then}: the one who asked for it left")
    for result in results:
        _say(output, f"upgrade: {result}")
        await _reply(stream, result)


async def _cancel_when_gone(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError):
        async for _ in stream:
            pass
    scope.cancel()


def own_program(argv0: str) -> tuple[str, ...]:
    """Return the command line of this `penstock`. A link to it (as Homebrew's, to the newest) stays one."""
    found = shutil.which(argv0)
    if found is not None and Path(found).name == "penstock":
        return (os.path.abspath(found),)
    return (sys.executable, "-m", "api")


def standard_output() -> Callable[[bytes], None]:
    """As they come, to whatever keeps this program's output."""

    def write(lines: bytes) -> None:
        with suppress(OSError):
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()

    return write
