"""`--served-model-name`: names with commas, each with settings of its own where it has some.

`penstock,coder:temperature=0.2,thinking=off,qwen3:8b` are three names, the second with two settings. A part
with an `=` is a setting: of the name before its last `:`, or else of the last name that has settings. So
neither the `:` of a tag nor a `/` means anything, and only a name with an `=` cannot be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.options.model_defaults import SETTINGS, DefaultSettings, checked


def named_presets(text: str) -> Mapping[str, DefaultSettings]:
    """Return what each name says, in their order. Raise ValueError, which quotes the bad part."""
    found: dict[str, dict[str, Any]] = {}
    last: dict[str, Any] | None = None
    for part in filter(None, map(str.strip, text.split(","))):
        left, equals, value = map(str.strip, part.partition("="))
        name, colon, key = (part, "", "") if not equals else map(str.strip, left.rpartition(":"))
        if not equals or colon:
            if not name:
                raise ValueError(f"{part!r} has no name")
            if name in found:
                raise ValueError(f"the name {name!r} is there twice")
            found[name] = {}
            last = found[name] if equals else None
        if not equals:
            continue
        if key not in SETTINGS:
            raise ValueError(f"{part!r}: there is no setting {key!r}, only {', '.join(SETTINGS)}")
        if last is None:
            raise ValueError(f"{part!r} belongs to no name; write NAME:{part}")
        if key in last:
            raise ValueError(f"{part!r}: {[*found][-1]!r} has {key} already")
        try:
            last[key] = checked(key, value, text=True)
        except ValueError as error:
            raise ValueError(f"{part!r}: {error}") from error
    if not found:
        raise ValueError("it contains no name")
    return found
