"""Run work of the grammar library on a stack that it cannot exhaust.

It is recursive, and a stack overflow in it ends the process, with everybody's answers: a schema of 70 KB, a
chain of 1,000 references, needs more than a thread's usual 8 MiB. The size of a grammar bounds the depth
(`MAX_GRAMMAR_BYTES`); where that is not enough, it ends a process of its own (`grammar/trial.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

TRIED_BYTES = 64 << 20
"""Address space: memory only where the stack grows to. The deepest schemas and terminals of 256 KiB need
between 8 and 64 MiB."""
STACK_BYTES = 2 * TRIED_BYTES
"""What an engine has for a grammar that was tried with the half of it."""

_T = TypeVar("_T")
_lock = threading.Lock()
"""Python has one stack size for all threads to come."""


def on_deep_stack(work: Callable[[], _T], stack_bytes: int = STACK_BYTES) -> _T:
    """Return what `work` returns, or raise what it raises, in a thread of its own, which takes 0.1 ms."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="grammar")
    with _lock:
        usual = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    return outcome.result()
