"""What the engine's code chooses by the device that it runs on.

One value a process: attention and the feed-forward gate are functions that mlx-lm's models call, so nothing
could be passed to them. Whoever chooses asks `device()` when it is called, not when it is imported, so that
tests on a CPU run the branches of Metal and CUDA (`forced`, tests/mlx/sixteen_bit).
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Device:
    exp_is_slow: bool
    """MLX's exponential is one libm call a number, 11 to 20 ns: nine tenths of attention over a long prefix.
    Then softmax and gate are computed by NumPy or from the bits of a power of two, all attention is ours, and
    penalties, cut-offs and random numbers are NumPy's as well."""


X86 = Device(exp_is_slow=True)
OTHER = Device(exp_is_slow=False)
"""Metal, CUDA and Apple's CPUs."""


def _detected() -> Device:
    on_x86 = mx.default_device() == mx.cpu and platform.machine() in ("x86_64", "AMD64")
    return X86 if on_x86 else OTHER


_device = _detected()


def device() -> Device:
    return _device


@contextmanager
def forced(instead: Device) -> Iterator[None]:
    """Run as on another device. Rows that began before keep how their tokens are chosen."""
    global _device
    before, _device = _device, instead
    try:
        yield
    finally:
        _device = before
