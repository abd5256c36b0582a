"""The engine process: `python -m scheduler.engine --fd N`, N being its end of the link to the server that
started it, or `--join HOST:PORT`, where it dials a server elsewhere (`join/joining.py`).
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from msgspec import structs

from scheduler.engine.backend import Backend, started
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.inbox import Inbox, inherited_link, keep_standard_output_clean
from scheduler.engine.join.joining import add_arguments, join
from scheduler.engine.join.model_source import located
from scheduler.engine.load_failure import in_one_line
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.environment import drop_compiled, set_defaults
from scheduler.engine.mlx_lm_import import file_limits_kept, without_tokenizers
from scheduler.engine.planning.chunk_ceiling import ChunkCeiling
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.shared.messages import PROTOCOL_VERSION, Fault, Load, Loading, ToEngine


def main() -> NoReturn:
    link, joined = _link()
    inbox = Inbox(link)
    inbox.start()
    try:
        command = _expect_load(inbox.wait())
        try:
            if command.fingerprint:
                inbox.send(Loading("reading the model's files, to know them by all their bytes"))
            command = located(command)
            backend = make_backend(command, lambda stage: inbox.send(Loading(stage)))
            ready = structs.replace(
                started(backend, command), fingerprint=command.fingerprint, host=socket.gethostname()
            )
        except Exception as error:
            # The stack is not printed: the operator reads one line, and the server logs the stack at debug
            # level. An operator who started this process by hand reads that line here.
            why = in_one_line(error)
            if joined:
                print(why, flush=True)
            _exit_with(inbox, Fault(why, traceback.format_exc()))
        # A generation-2 collection of the heap that the imports leave took 61-299 ms in the middle of a step.
        # This is here and not in `load`: only the owner of the process may freeze its heap.
        gc.collect()
        gc.freeze()
        if command.yields:
            _yield_processor()
        inbox.send(ready)
        _run(
            EngineLoop(
                backend,
                command.max_slots,
                _pace(command),
                ceiling=ChunkCeiling.of(command),
                speculation=Speculation() if ready.verifies else None,
                begins=inbox.send,
            ),
            inbox,
        )
    except Exception as error:
        traceback.print_exc()
        drop_compiled(os.environ, error)
        _exit_with(inbox, Fault(f"{type(error).__name__}: {error}"))


def _link() -> tuple[socket.socket, bool]:
    """Return the link, and whether this process has joined a server elsewhere."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.engine")
    parser.add_argument("--fd", type=int, help="A socket to the server that started this process.")
    add_arguments(parser)
    options = parser.parse_args()
    if options.fd is not None:
        return inherited_link(options.fd), False
    link = join(options)
    # Ctrl-C on a terminal ends it at once, also in the middle of a step.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # This copy stays open until the process ends, which shows its end to what started it.
    os.dup(sys.stdout.fileno())
    keep_standard_output_clean()
    return link, True


def _exit_with(inbox: Inbox, fault: Fault) -> NoReturn:
    inbox.send(fault)
    sys.stderr.flush()
    # No interpreter shutdown: the inbox thread is blocked in a read, MLX's destructors take seconds.
    os._exit(1)


def _expect_load(command: ToEngine) -> Load:
    if not isinstance(command, Load):
        raise TypeError(f"the first command must be Load, not {type(command).__name__}")
    if command.version != PROTOCOL_VERSION:
        raise ValueError(f"protocol version {command.version} from the server, {PROTOCOL_VERSION} here")
    return command


def make_backend(command: Load, report: Callable[[str], None]) -> Backend:
    """Load the model. `report`: gets the stages of loading. Raise what the back end's loading raises."""
    match command.backend:
        case "scripted":
            return ScriptedBackend(
                command.scripted,
                kv_cache_bytes=command.kv_cache_bytes,
                kv_cache_share=command.kv_cache_share,
                memory_limit_bytes=int(command.memory_limit) if command.memory_limit > 1 else 0,
                memory_part=command.memory_part,
                adapters=command.adapters,
            )
        case "mlx":
            report("importing mlx")
            set_defaults(os.environ)
            # Imported here: a scripted engine starts without the time of this import.
            with file_limits_kept(), without_tokenizers():
                from scheduler.engine.mlx import loading as model_loading
                from scheduler.engine.mlx.pooling import loading as pooling_loading

            if command.pooler is not None:
                return pooling_loading.load(command, report)
            return model_loading.load(command, report)


_NICE = 15
_THREADS = Path("/proc/self/task")
"""The threads of this process: on Linux each has a nice value of its own, and the matrix library has started
its threads by now."""


def _yield_processor() -> None:
    """Yield the processor to chats: a reader waits for each token of a chat, but a vector is mostly one of
    thousands. Call this after the load, for which a client waits."""
    if not _THREADS.is_dir():
        os.nice(_NICE)
        return
    for thread in _THREADS.iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
    with suppress(OSError):
        # Each session is a scheduling group of its own, and nice values count only within a group.
        Path("/proc/self/autogroup").write_text(str(_NICE))


def _pace(command: Load) -> PrefillPace:
    target = command.itl_target_ms / 1000 if command.itl_target_ms > 0 else None
    return PrefillPace(command.prefill_chunk_tokens, target)


def _run(loop: EngineLoop, inbox: Inbox) -> NoReturn:
    """Run until the process ends: when the server closes the link, the inbox thread exits the process."""
    while True:
        if loop.resting:
            commands = inbox.wait_burst()
        elif loop.pausing:
            commands = inbox.wait_briefly()
        else:
            commands = inbox.drain_nowait()
        for frame in loop.iterate(commands):
            inbox.send(frame)


if __name__ == "__main__":
    main()
