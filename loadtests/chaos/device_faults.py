"""Metal's errors in a process that has no Metal: the n-th evaluation fails, and leaves its arrays unwritten.

MLX (0.32.1 and later) raises the text of a failed command buffer once, at the evaluation that waits for it,
or at the next one where the buffer's handler was late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

_FAILED = "[METAL] Command buffer execution failed: "
TEXTS = (
    f"{_FAILED}Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory).",
    f"{_FAILED}Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).",
    f"{_FAILED}Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang).",
    f"{_FAILED}(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity).",
    f"{_FAILED}Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim).",
    f"{_FAILED}Ignored (for causing prior/excessive GPU errors)"
    " (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).",
    f"{_FAILED}Invalid Resource (00000009:kIOGPUCommandBufferCallbackErrorInvalidResource).",
    f"{_FAILED}Internal Error (0000000e:Internal Error).",
    "[metal::malloc] Resource limit (499000) exceeded.",
    "[metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum allowed"
    " buffer size of 30150672384 bytes.",
)
_GARBAGE = 3
_READER = "content_codec"
"""The module that evaluates only views of what is evaluated: that is no work for the device."""


class DeviceFault:
    """Lets the evaluation of this `number`, counted from 1, fail. `late`: that one returns, and the next one
    that waits or evaluates raises."""

    def __init__(self, number: int, text: str, late: bool = False) -> None:
        self.raised = False
        self._number, self._text, self._late = number, text, late
        self._evaluations = 0
        self.pending = False

    def check(self) -> None:
        if self.pending:
            self.pending, self.raised = False, True
            raise RuntimeError(self._text)

    def evaluate(self, ordinary: Callable[..., None], trees: tuple[Any, ...]) -> None:
        self.check()
        self._evaluations += 1
        if self._evaluations == self._number:
            leaves: Any = tree_flatten(list(trees))
            for _, leaf in leaves:
                if isinstance(leaf, mx.array):
                    leaf[...] = _GARBAGE
            self.pending = True
            if not self._late:
                self.check()
        ordinary(*trees)


@contextmanager
def failing(fault: DeviceFault) -> Iterator[DeviceFault]:
    """Within this block, let evaluations of this process fail by `fault`."""
    ordinary = {name: getattr(mx, name) for name in ("eval", "async_eval", "synchronize")}

    def evaluating(name: str) -> Callable[..., None]:
        def evaluate(*trees: Any) -> None:
            if sys._getframe(1).f_globals["__name__"].endswith(_READER):
                ordinary[name](*trees)
            else:
                fault.evaluate(ordinary[name], trees)

        return evaluate

    def synchronize(*stream: Any) -> None:
        ordinary["synchronize"](*stream)
        fault.check()

    setattr(mx, "eval", evaluating("eval"))  # noqa: B010 (mypy: another signature)
    setattr(mx, "async_eval", evaluating("async_eval"))  # noqa: B010
    setattr(mx, "synchronize", synchronize)  # noqa: B010
    try:
        yield fault
    finally:
        for name, call in ordinary.items():
            setattr(mx, name, call)
