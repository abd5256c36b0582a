"""The bounds on a body's text, against a scan of each of its characters."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import given, settings

from api.bodies import json_text
from tests.examples import examples

NESTING, CONTAINERS, MEMBERS, VALUES = 3, 6, 4, 9
BOUNDS: dict[str, Any] = {
    "MAX_NESTING": NESTING,
    "MAX_CONTAINERS": CONTAINERS,
    "MAX_MEMBERS": MEMBERS,
    "MAX_VALUES": VALUES,
    "_SHORT_BYTES": 0,
}


def breaks_a_bound(text: str) -> bool:
    """A backslash escapes a quote or another backslash, in strings and (no JSON) outside of them."""
    depth = deepest = containers = members = commas = position = 0
    inside = False
    while position < len(text):
        if text[position : position + 2] in ("\\\\", '\\"'):
            position += 2
            continue
        one = text[position]
        position += 1
        if one == '"':
            inside = not inside
        elif not inside:
            depth += (one in "[{") - (one in "]}")
            deepest = max(deepest, depth)
            containers += one in "[{"
            members += one == ":"
            commas += one == ","
    return deepest > NESTING or containers > CONTAINERS or members > MEMBERS or commas + containers > VALUES


def is_refused(text: str) -> bool:
    try:
        json_text.check_bounds(text.encode())
    except ValueError:
        return True
    return False


@given(text=st.text(st.sampled_from('[]{}"\\,: é'), max_size=60), piece_bytes=st.integers(2, 30))
@settings(max_examples=examples(500))
def test_any_text_is_judged_as_by_a_scan_of_its_characters(text: str, piece_bytes: int) -> None:
    """Whether it is JSON or not, and wherever pieces of it end."""
    with patch.multiple(json_text, _PIECE_BYTES=piece_bytes, **BOUNDS):
        assert is_refused(text) == breaks_a_bound(text)


def test_each_bound_is_one_of_its_own() -> None:
    for ends, text in (
        (False, "[[[]]]" + "[]" * 3),
        (True, "[[[[]]]]"),
        (True, "[]" * 7),
        (True, '{"":1,"":1,"":1,"":1,"":1}'),
        (False, '["' + "[" * 50 + ":" * 50 + "," * 50 + '"]'),
        (True, "[,,,,,,,,,]"),
    ):
        with patch.multiple(json_text, **BOUNDS):
            assert is_refused(text) == breaks_a_bound(text) == ends, text
