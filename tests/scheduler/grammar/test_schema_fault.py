"""The search for a mistake's place is bounded in time, and returns the place found so far."""

from __future__ import annotations

import json
from typing import Any

from scheduler.grammar.part import LOCATED_BYTES, SEARCH_SECONDS, schema_fault


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"not": {}}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def complaint_of(schema: Any) -> str | None:
    return "not" if '"not"' in json.dumps(schema) else None


def test_the_innermost_part_is_named() -> None:
    """That has the complaint by itself; its neighbours have none."""
    schema = {"properties": {"a": {"type": "string"}, "b": nested(3)}}
    assert schema_fault(schema, "not", complaint_of) == (
        ("properties", "b", "items", "items", "items"),
        "not",
    )


def test_the_search_ends_with_its_time() -> None:
    """Each part that is tried takes a fifth of the time: four of them are named."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += SEARCH_SECONDS / 5
        return now

    path, _ = schema_fault(nested(20), "not", complaint_of, clock)
    assert path == ("items",) * 4


def test_a_large_schema_is_named_as_a_whole() -> None:
    """Nothing is looked for in it."""
    large = {"description": "x" * LOCATED_BYTES, "properties": {"a": nested(1)}}
    assert schema_fault(large, "not", complaint_of) == ((), "not")
