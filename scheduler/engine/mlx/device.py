"""The properties of the engine's device.

One value per process: mlx-lm's models call attention and the feed-forward gate, so that no argument can be
passed. Callers read `device()` at each call, not at import, so that tests on a CPU can run the branches of
Metal and CUDA (`forced`).
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
    """MLX's exponential is one libm call per number, 11 to 20 ns: nine tenths of attention over a long
    prefix. Then NumPy or a power of two made from bits computes softmax and gate, all attention is ours, and
    NumPy computes penalties, cut-offs and random numbers, too."""


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
    """Run as if on another device. Existing rows keep their way of sampling."""
    global _device
    before, _device = _device, instead
    try:
        yield
    finally:
        _device = before
