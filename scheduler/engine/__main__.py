"""The engine process: `python -m scheduler.engine --fd N`, N being its end of the link.

Only `scheduler/link/process.py` starts it.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from msgspec import structs

from scheduler.engine.backend import Backend, started
from scheduler.engine.chunk_ceiling import ChunkCeiling
from scheduler.engine.inbox import Inbox
from scheduler.engine.load_failure import in_one_line
from scheduler.engine.loop import EngineLoop
from scheduler.engine.model_source import located
from scheduler.engine.pace import PrefillPace
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.link.messages import PROTOCOL_VERSION, Fault, Load, Loading, ToEngine


def main() -> NoReturn:
    faulthandler.enable()
    # Ctrl-C reaches the whole foreground process group, but only the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments = argparse.ArgumentParser(prog="python -m scheduler.engine")
    arguments.add_argument("--fd", type=int, required=True)
    link = socket.socket(fileno=arguments.parse_args().fd)
    # The parent owns standard output, and a library's stray print must not appear there. Redirect both the
    # Python object, which is line-buffered (a block-buffered one would delay its lines), and the descriptor
    # that C code writes to.
    parents, sys.stdout = sys.stdout, sys.stderr
    os.dup2(sys.stderr.fileno(), parents.fileno())
    inbox = Inbox(link)
    inbox.start()
    try:
        command = _expect_load(inbox.wait())
        try:
            command = located(command)
            backend = _make_backend(command, inbox)
            ready = structs.replace(
                started(backend, command), fingerprint=command.fingerprint, host=socket.gethostname()
            )
        except Exception as error:
            # Without the stack on stderr: the operator reads one line, and the parent logs the stack for whom
            # it helps.
            _exit_with(inbox, Fault(in_one_line(error), traceback.format_exc()))
        # A generation-2 collection of the heap that the imports leave took 61-299 ms in the middle of a step.
        # Here and not in `load`: only the owner of the process may decide it for the whole process.
        gc.collect()
        gc.freeze()
        if command.pooler is not None:
            _yield_processor()
        inbox.send(ready)
        _run(
            EngineLoop(backend, command.max_slots, _pace(command), ceiling=ChunkCeiling.of(command)),
            inbox,
        )
    except Exception as error:
        traceback.print_exc()
        _exit_with(inbox, Fault(f"{type(error).__name__}: {error}"))


def _exit_with(inbox: Inbox, fault: Fault) -> NoReturn:
    inbox.send(fault)
    sys.stderr.flush()
    # No interpreter shutdown: the inbox thread is blocked in a read, MLX's destructors take seconds.
    os._exit(1)


def _expect_load(command: ToEngine) -> Load:
    if not isinstance(command, Load):
        raise TypeError(f"the first command must be Load, not {type(command).__name__}")
    if command.version != PROTOCOL_VERSION:
        raise ValueError(f"protocol version {command.version} from the parent, {PROTOCOL_VERSION} here")
    return command


_NICE = 15
_THREADS = Path("/proc/self/task")
"""On Linux a nice value is a thread's, and the matrix library has its threads by now."""


def _yield_processor() -> None:
    """Somebody waits for each token of a chat, and for a vector only among thousands: where both are computed
    on the processor, chats go first. Not before the load, which somebody waits for."""
    if not _THREADS.is_dir():
        os.nice(_NICE)
        return
    for thread in _THREADS.iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
    with suppress(OSError):
        # Each session is a scheduling group of its own, within which alone nice values count.
        Path("/proc/self/autogroup").write_text(str(_NICE))


def _pace(command: Load) -> PrefillPace:
    target = command.itl_target_ms / 1000 if command.itl_target_ms > 0 else None
    return PrefillPace(command.prefill_chunk_tokens, target)


def _make_backend(command: Load, inbox: Inbox) -> Backend:
    match command.backend:
        case "scripted":
            return ScriptedBackend(
                command.scripted,
                kv_cache_bytes=command.kv_cache_bytes,
                kv_cache_share=command.kv_cache_share,
                memory_limit_bytes=int(command.memory_limit) if command.memory_limit > 1 else 0,
                memory_most_bytes=command.memory_most_bytes,
            )
        case "mlx":
            inbox.send(Loading("importing mlx"))
            # Imported here: a scripted engine starts without the 2 seconds of this import.
            with _file_limits_kept():
                from scheduler.engine.mlx import loading as model_loading
                from scheduler.engine.mlx.pooling import loading as pooling_loading

            load = model_loading.load if command.pooler is None else pooling_loading.load
            return load(command, lambda stage: inbox.send(Loading(stage)))


@contextmanager
def _file_limits_kept() -> Iterator[None]:
    """Restore the limits: mlx-lm sets RLIMIT_NOFILE to (2048, 4096) when it is imported, which raises
    ValueError where the hard limit is lower. The engine needs a dozen files, and the parent has raised the
    soft limit already."""
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *limits: None
    try:
        yield
    finally:
        resource.setrlimit = set_limit


def _run(loop: EngineLoop, inbox: Inbox) -> NoReturn:
    """Run until the process ends: when the parent closes the link, the inbox thread exits the process."""
    while True:
        if loop.resting:
            commands = inbox.wait_burst()
        elif loop.pausing:
            commands = inbox.wait_briefly()
        else:
            commands = inbox.drain_nowait()
        for frame in loop.turn(commands):
            inbox.send(frame)


if __name__ == "__main__":
    main()
