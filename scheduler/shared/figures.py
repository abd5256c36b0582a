"""A number is declared once: beside its field of a wire struct, with its name wherever operators read it.

`running: Annotated[int, gauge("penstock_running_slots", "Slots in use.", live="running_slots")] = 0` is all
of a gauge. Who shows numbers loops over `figures_of` when somebody looks; a step computes nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

_S = TypeVar("_S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Figure:
    """`name`, `help`, `label`: its series in `/metrics`; fields of one name have a label, each with its
    value. A counter only grows while a process lives, and is counted on over its restarts."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    label: tuple[()] | tuple[str, str] = ()
    live: str = ""
    """Its key in the live page's snapshots: a gauge of each engine, a counter of all together. Empty: it is
    not there."""
    history: str = ""
    """Its column in the page's history, of all engines together; a counter's has its rate. Empty: none."""
    vllm: tuple[str, ...] = ()
    """vLLM's names for it (`telemetry/vllm_names.py`)."""


counter = partial(Figure, "counter")
gauge = partial(Figure, "gauge")


@cache
def _declared(struct: type[msgspec.Struct]) -> Mapping[str, Figure | type[msgspec.Struct]]:
    """Return the figure of each field that has one, and the type of each that is a struct."""
    return {
        name: one
        for name, hint in get_type_hints(struct, include_extras=True).items()
        for one in (hint, *getattr(hint, "__metadata__", ()))
        if isinstance(one, Figure) or (isinstance(one, type) and issubclass(one, msgspec.Struct))
    }


@cache
def figures_of(struct: type[msgspec.Struct]) -> Mapping[Figure, Callable[[Any], float]]:
    """Return each figure of the struct, and of those in it, with what reads its value."""
    return dict(_figures(struct, ""))


def _figures(struct: type[msgspec.Struct], path: str) -> Iterator[tuple[Figure, Callable[[Any], float]]]:
    for name, one in _declared(struct).items():
        if isinstance(one, Figure):
            yield one, partial(_read, attrgetter(path + name))
        else:
            yield from _figures(one, f"{path}{name}.")


def _read(field: Callable[[Any], Any], struct: msgspec.Struct) -> float:
    value = field(struct)
    return float(sum(value.values()) if isinstance(value, dict) else value)


def over_lives(past: _S, now: _S) -> _S:
    """Return `now` with its counters counted on from `past`, the totals of the processes before."""
    fields = {}
    for name, one in _declared(type(now)).items():
        before, after = getattr(past, name), getattr(now, name)
        if not isinstance(one, Figure):
            fields[name] = over_lives(before, after)
        elif one.kind == "counter":
            fields[name] = plus(before, after)
    return msgspec.structs.replace(now, **fields)


def plus(one: Any, other: Any) -> Any:
    """Return the sum: of structs field by field, of dictionaries by key; lists are joined."""
    match one:
        case msgspec.Struct():
            fields = {name: plus(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__}
            return type(one)(**fields)
        case dict():
            return one | {key: one.get(key, 0) + value for key, value in other.items()}
        case _:
            return one + other
