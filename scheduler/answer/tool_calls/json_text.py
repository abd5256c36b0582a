"""JSON for the client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_OF_ANY_STRING = {"type", "title", "description", "default", "examples"}


def json_text(value: Any) -> str:
    """Return JSON for the client. Raise ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # JSON can escape a lone surrogate, which UTF-8 cannot encode.
    return text.encode("utf-8", "backslashreplace").decode()


def takes_strings(schema: Any) -> bool:
    """Return whether a value that is marked as a string stays one."""
    if not isinstance(schema, Mapping):
        return True
    kinds = schema.get("type")
    if kinds is None:
        branches = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(branches, list) and not schema.keys() & {"allOf", "$ref", "enum", "const"}:
            # One branch takes any string: this is how schemas write an optional text.
            return any(
                isinstance(one, Mapping) and one.keys() <= _OF_ANY_STRING and takes_strings(one)
                for one in branches
            )
        return not any(name in schema for name in ("anyOf", "oneOf", "allOf", "$ref", "enum", "const"))
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
