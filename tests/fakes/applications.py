"""What FastAPI finds out about endpoints, kept for the whole process.

A server makes one application, and tests a thousand. Their endpoints are the same functions over other
models, but FastAPI evaluates their annotations and builds pydantic's validators again for each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from fastapi._compat import v2
from fastapi.dependencies import models, utils
from pydantic import TypeAdapter

_signature_of = utils._get_signature
_signatures: dict[Any, inspect.Signature] = {}
_adapters: dict[Any, TypeAdapter[Any]] = {}


def remember() -> None:
    """From now on, FastAPI reads each signature and builds each validator once."""
    utils._get_signature = _signature
    setattr(v2, "TypeAdapter", _adapter)  # noqa: B010, as its module does not export it.


def forget_handlers() -> None:
    """FastAPI keeps the handlers of a hundred applications, each with 6,000 objects for the collector."""
    for cached in vars(models).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    key: Any = call
    if isinstance(call, FunctionType) and not hasattr(call, "__wrapped__"):
        # A closure, which is another object in each application.
        named = tuple((call.__kwdefaults__ or {}).items())
        key = (call.__code__, call.__module__, call.__qualname__, call.__defaults__, named)
    if key not in _signatures:
        _signatures[key] = _signature_of(call)
    return _signatures[key]


def _adapter(annotated: Any, *, config: Any = None) -> TypeAdapter[Any]:
    """Return the adapter of a field: its metadata are equal if they read the same, as the first one's live on
    in its adapter."""
    key = (annotated.__origin__, repr(annotated.__metadata__), repr(config))
    if key not in _adapters:
        _adapters[key] = TypeAdapter(annotated, config=config)
    return _adapters[key]
