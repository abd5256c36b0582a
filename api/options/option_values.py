"""Parse the text of options whose type alone does not decide the value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec
from pydantic import BeforeValidator

from api.access.allowed_hosts import EVERY, host_name
from scheduler.engines.boundary import MOST_ENGINES
from scheduler.shared.messages import ScriptedPlan


def scripted_plan(text: Any) -> Any:
    """Parse `key=value,key=value` into a ScriptedPlan."""
    if not isinstance(text, str):
        return text
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    known = ScriptedPlan.__struct_fields__
    for key, equals, _ in pairs:
        if key not in known or not equals:
            raise ValueError(f"{key!r} is none of {', '.join(known)}")
    try:
        values = {key: msgspec.json.decode(value.encode()) for key, _, value in pairs}
        # Through msgspec, so that each value's type is checked against the plan's.
        healthy = ScriptedPlan()
        return msgspec.convert([values.get(name, getattr(healthy, name)) for name in known], ScriptedPlan)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def engine_count(text: Any) -> Any:
    """Return the number of engines or `join`, if other machines have them."""
    if text == "join":
        return text
    try:
        count = int(text)
    except (TypeError, ValueError):
        count = 0
    if not 1 <= count <= MOST_ENGINES:
        raise ValueError(f"a number from 1 to {MOST_ENGINES}, or join")
    return count


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{letter}i": 1 << shift for letter, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
}


_LEAST_BYTES = 1000
"""No size that is given in bytes is less: then its unit was forgotten."""


def byte_count(given: Any) -> Any:
    """Parse `8GiB`, `500MB`, `1024` or `auto` (-1) into bytes, or check a number of them."""
    if not isinstance(given, str | int | float) or given == -1:
        return given
    text = str(given).strip().lower()
    if text == "auto":
        return -1
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError("bytes are given as 8GiB, 500MB, a number, or auto")
    size = float(match[1]) * _UNITS[match[2]]
    if 0 < size < _LEAST_BYTES:
        raise ValueError(f"{size:g} bytes hold nothing: write the unit, as {match[1]}GiB")
    return int(size)


Bytes: TypeAlias = Annotated[int, BeforeValidator(byte_count)]


def memory_amount(text: Any) -> Any:
    """Parse `24GiB` into bytes, or a share up to 1; `auto` is 0."""
    if not isinstance(text, str):
        return text
    try:
        share = float(text)
    except ValueError:
        return max(0, byte_count(text))
    return share if share <= 1 else byte_count(text)


MemoryAmount: TypeAlias = Annotated[float, BeforeValidator(memory_amount)]


def readable_by(parse: Callable[[str], object]) -> BeforeValidator:
    """Have `parse`, which raises ValueError, look at the text of an option that is read where it is used."""

    def check(given: Any) -> Any:
        # An option that may be given several times.
        text = ",".join(given) if isinstance(given, tuple) else given
        if isinstance(text, str):
            parse(text)
        return text

    return BeforeValidator(check)


def host_names(text: str | None) -> list[str]:
    names = between_commas(text)
    for name in names:
        if name != EVERY and host_name(name) is None:
            raise ValueError(f"{name!r} is not a host name")
    return names


def listening_addresses(text: str | None) -> list[tuple[str, int]]:
    """Parse `HOST,HOST:PORT,:PORT`; "" is all hosts, and 0 a free port. Raise ValueError."""
    found = []
    for part in between_commas(text):
        match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", part)
        if match is None or int(match[2] or 0) > 65535:
            raise ValueError(f"{part!r} is no HOST, HOST:PORT or :PORT")
        found.append((match[1].strip("[]"), int(match[2] or 0)))
    return found


def named_folders(text: str | None) -> list[tuple[str, str]]:
    """Parse `name=folder,name=folder`. Raise ValueError, which quotes the bad part."""
    found: dict[str, str] = {}
    for part in between_commas(text):
        name, equals, folder = map(str.strip, part.partition("="))
        if not (name and equals and folder):
            raise ValueError(f"an adapter is given as name=folder, not as {part!r}")
        if name in found:
            raise ValueError(f"the name {name!r} is there twice")
        found[name] = folder
    return list(found.items())


def between_commas(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
