"""What FastAPI finds out about endpoints, kept for the whole process.

A server makes one application, and tests a thousand. Their endpoints are the same functions over other
models, but FastAPI evaluates their annotations and builds pydantic's validators again for each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

from fastapi import routing
from fastapi._compat import v2
from fastapi.dependencies import models, utils
from fastapi.dependencies.models import Dependant
from pydantic import TypeAdapter

_signature_of = utils._get_signature
_signatures: dict[Any, inspect.Signature] = {}
_dependants: dict[Any, Dependant] = {}
_adapters: dict[Any, TypeAdapter[Any]] = {}


def remember() -> None:
    """From now on, FastAPI looks at each endpoint and builds each validator once."""
    utils._get_signature = _signature
    for module, name, remembers in ((routing, "get_dependant", _dependant), (v2, "TypeAdapter", _adapter)):
        setattr(module, name, remembers)


def forget_handlers() -> None:
    """FastAPI keeps the handlers of a hundred applications, each with 6,000 objects for the collector."""
    for cached in vars(models).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def _identity(call: Callable[..., Any]) -> Any:
    """Return what a function has in common with the same one in another application."""
    if not isinstance(call, FunctionType) or hasattr(call, "__wrapped__"):
        return call
    named = tuple((call.__kwdefaults__ or {}).items())
    return call.__code__, call.__module__, call.__qualname__, call.__defaults__, named


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    key = _identity(call)
    if key not in _signatures:
        _signatures[key] = _signature_of(call)
    return _signatures[key]


def _dependant(*, call: Callable[..., Any], **options: Any) -> Dependant:
    """Return what an endpoint depends on. Only the list of dependencies is changed afterwards."""
    key = _identity(call), *sorted(options.items())
    if key not in _dependants:
        _dependants[key] = utils.get_dependant(call=call, **options)
    found = _dependants[key]
    return replace(found, call=call, dependencies=[*found.dependencies])


def _adapter(annotated: Any, *, config: Any = None) -> TypeAdapter[Any]:
    """Return the adapter of a field. Its metadata are equal if they read the same, as those of the first
    one live on in its adapter."""
    key = (annotated.__origin__, repr(annotated.__metadata__), repr(config))
    if key not in _adapters:
        _adapters[key] = TypeAdapter(annotated, config=config)
    return _adapters[key]
