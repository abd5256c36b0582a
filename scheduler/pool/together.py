"""Several engines' reports as one: numbers added, lists joined.

A file of its own because the messages on the link should not know that there may be several engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from scheduler.link.messages import Inspection
from scheduler.link.reports import CacheReport, DiskReport

_R = TypeVar("_R", CacheReport, DiskReport)


def together(inspections: Iterable[Inspection], top: int) -> Inspection:
    """Return the sum. Its `engine` is the first one's, and of all shared prefixes it has the `top` with the
    most cached continuations."""
    first, *others = inspections
    if not others:
        return first
    everyone = (first, *others)
    cache = _added([one.cache for one in everyone if one.cache is not None])
    if cache is not None:
        best = sorted(cache.trunks, key=lambda prefix: prefix.references, reverse=True)[:top]
        cache = msgspec.structs.replace(cache, trunks=best)
    return msgspec.structs.replace(
        first,
        freed_bytes=sum(one.freed_bytes for one in everyone),
        cache=cache,
        disk=_added([one.disk for one in everyone if one.disk is not None]),
    )


def _added(reports: Sequence[_R]) -> _R | None:
    if not reports:
        return None
    values = {name: _sum([getattr(one, name) for one in reports]) for name in reports[0].__struct_fields__}
    return type(reports[0])(**values)


def _sum(values: Sequence[Any]) -> Any:
    match values[0]:
        case dict():
            return dict(sum((Counter(one) for one in values), Counter()))
        case list():
            return [item for one in values for item in one]
        case _:
            return sum(values)
