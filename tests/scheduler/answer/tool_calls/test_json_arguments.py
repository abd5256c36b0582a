"""A JSON object that is streamed while the model writes it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.tool_calls.json_arguments import JsonArguments

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text(), values, max_size=5)


def read(text: str, cuts: list[int], schema: dict[str, Any] | None = None) -> tuple[str, str, bool]:
    reader = JsonArguments(schema or {})
    out, rest = "", ""
    bounds = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    for start, end in pairwise(bounds):
        piece, behind = reader.feed(text[start:end])
        out, rest = out + piece, rest + behind
    return out, rest, reader.done


@settings(deadline=None)
@given(
    value=objects, indent=st.sampled_from([None, 0, 2]), ascii_=st.booleans(), cuts=st.lists(st.integers(0))
)
def test_any_object_in_any_pieces_is_itself(
    value: dict[str, Any], indent: int | None, ascii_: bool, cuts: list[int]
) -> None:
    """In any spelling, cut anywhere; the text behind it is returned."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    out, rest, done = read(text + " }x", cuts)
    assert done
    assert json.loads(out) == value
    assert rest == " }x"
    assert out == read(text, [])[0]


@pytest.mark.parametrize(
    "text",
    ["[1]", "x", "{1}", '{"a" 1}', '{"a": }', '{"a": 1 2}', '{"a": tru}', '{"a": "\\x"}', '{"a": "\\u00g0"}'],
)
def test_what_is_no_object_is_an_error(text: str) -> None:
    """As soon as that is certain."""
    with pytest.raises(ValueError, match=r".+"):
        read(text + "}", [])


@pytest.mark.parametrize("text", ["", "{", '{"a', '{"a": "x', '{"a": [1', '{"a": 12'])
def test_what_is_not_over_is_not_done(text: str) -> None:
    """A call that was cut off."""
    assert not read(text, [])[2]


def test_what_models_get_wrong_and_everyone_understands_is_put_right() -> None:
    """A bare line break in a string, a comma before the end."""
    out, _, done = read('{"a": "x\ny\t", "b": {"c": "1\n2"},}', [])
    assert done
    assert json.loads(out) == {"a": "x\ny\t", "b": {"c": "1\n2"}}


def test_a_string_where_none_is_allowed_waits_and_is_read() -> None:
    """The schema decides what can pass through at once."""
    out, _, _ = read(
        '{"n": "12", "s": 7}', [], {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    )
    assert json.loads(out) == {"n": 12, "s": "7"}


def test_a_deep_value_is_an_error_and_no_crash() -> None:
    """A model that repeats a bracket forever."""
    with pytest.raises(ValueError, match="deep"):
        read('{"a": ' + "[" * 100_000, [])
