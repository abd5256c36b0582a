"""The `regex` package within a time limit that spans many calls.

mlx-lm's tool parsers match patterns with several lazy groups against the model's output. On unbalanced marks
they take quadratic or cubic time (40 KB: 4 to 12 s; `regex` has no bound by steps). Python code between two
matches is not limited: only matching was found to be superlinear.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import regex

_ends_at: ContextVar[float | None] = ContextVar("regex_ends_at", default=None)
_LIMITED = ("search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split", "splititer")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Matching inside raises TimeoutError after `seconds` of the process's CPU time. That is the clock of
    `regex`: a suspended process does not lose time. Nor does one whose garbage is collected, which can take
    longer than any match: that waits."""
    collects = gc.isenabled()
    gc.disable()
    token = _ends_at.set(time.process_time() + seconds)
    try:
        yield
    finally:
        _ends_at.reset(token)
        if collects:
            gc.enable()


def limit_module(module: ModuleType) -> None:
    """Replace `regex` and its patterns among the globals of `module` by limited ones. A second call changes
    nothing."""
    for name, value in list(vars(module).items()):
        if value is regex:
            setattr(module, name, _Limited(regex))
        elif isinstance(value, regex.Pattern):
            setattr(module, name, _Limited(value))


class _Limited:
    """A pattern, or the whole package."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name == "compile":
            return lambda *args, **options: _Limited(value(*args, **options))
        return _limited(value) if name in _LIMITED else value


def _limited(method: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        ends_at = _ends_at.get()
        if ends_at is None:
            return method(*args, **options)
        left = ends_at - time.process_time()
        if left <= 0:
            raise TimeoutError("matching took too long")
        return method(*args, timeout=left, **options)

    return run
