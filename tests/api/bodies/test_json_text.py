"""The bounds on a body's text, against a scan of each of its characters."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
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


def breaks_a_bound(text: str, nesting: int = NESTING) -> bool:
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
    return deepest > nesting or containers > CONTAINERS or members > MEMBERS or commas + containers > VALUES


def is_refused(text: str) -> bool:
    try:
        json_text.check_bounds(text.encode())
    except ValueError:
        return True
    return False


@given(texts=st.lists(st.text(st.sampled_from("[]{},: é"), max_size=20), max_size=6))
@settings(max_examples=examples(300))
def test_the_texts_of_one_body_spend_one_budget(texts: list[str]) -> None:
    """JSON in strings (calls' arguments) counts as if it stood in the body."""
    with patch.multiple(json_text, **{**BOUNDS, "MAX_NESTING": 100}), json_text.one_body():
        refused = [text for text in texts if is_refused(text)]
    assert bool(refused) == breaks_a_bound("".join(texts), nesting=100)


@given(text=st.text(st.sampled_from('[]{}"\\,: é'), max_size=60), piece_bytes=st.integers(2, 30))
@settings(max_examples=examples(500))
def test_any_text_is_judged_as_by_a_scan_of_its_characters(text: str, piece_bytes: int) -> None:
    """Whether it is JSON or not, and wherever pieces of it end."""
    with patch.multiple(json_text, _PIECE_BYTES=piece_bytes, **BOUNDS):
        assert is_refused(text) == breaks_a_bound(text)


_HALVES = ("d83d", "D83D", "dbff", "de00", "DFFF", "0041", "d7ff", "e000")
_UNITS = st.sampled_from([*(rf"\u{half}" for half in _HALVES), r"\\", r"\"", "u", "d83d", "é"])


@given(units=st.lists(_UNITS, max_size=12), piece_bytes=st.integers(6, 20), bom=st.booleans())
@settings(max_examples=examples(500))
def test_half_a_character_is_replaced_and_whole_ones_stay(
    units: list[str], piece_bytes: int, bom: bool
) -> None:
    """As Python reads it, which keeps halves; wherever pieces end, with a byte order mark and without."""
    text = '{"a": "' + "".join(units) + '"}'
    whole = re.sub("[\ud800-\udfff]", "\ufffd", json.loads(text)["a"])
    with patch.object(json_text, "_PIECE_BYTES", piece_bytes):
        assert json_text.decode(b"\xef\xbb\xbf" * bom + text.encode()) == {"a": whole}


def test_half_a_character_in_bytes_is_replaced() -> None:
    text = '{"a\ud83d": ["\ude00", "😀"]}'.encode("utf-8", "surrogatepass")
    assert json_text.decode(text) == {"a\ufffd": ["\ufffd", "😀"]}


def test_halves_are_bounded_and_other_mistakes_stay_mistakes() -> None:
    halves = json_text.MAX_HALVES
    assert json_text.decode(b'"' + b"\\udfff" * halves + b'"') == "\ufffd" * halves
    for text in (b'"' + b"\\udfff" * (halves + 1) + b'"', b'["\\udfff"', b'"\\ud83"', b'"\xff\\udfff"'):
        with pytest.raises(ValueError):  # noqa: PT011 - which mistake is found first does not matter
            json_text.decode(text)
