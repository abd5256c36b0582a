"""Where messages begin and end, by the special tokens between them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.prompt.boundaries import MOST_BOUNDARIES, boundaries_of

_SPECIAL = frozenset({0, 1, 2})


def test_each_run_of_special_tokens_is_a_boundary() -> None:
    """<start>system text<end> <start>user text<end> <start>assistant: the end of each text, the start of
    each turn, and the point before the generation prompt."""
    tokens = [0, 10, 11, 1, 9, 0, 12, 13, 1, 9, 0, 14]
    assert boundaries_of(tokens, _SPECIAL) == (3, 5, 8, 10)


@settings(derandomize=True, deadline=None)
@given(tokens=st.lists(st.integers(0, 6), max_size=900))
def test_boundaries_are_few_ordered_and_inside(tokens: list[int]) -> None:
    """Whatever the tokens are; and those of a prompt that goes on begin with the same."""
    found = boundaries_of(tokens, _SPECIAL)
    assert list(found) == sorted(set(found))
    assert len(found) <= MOST_BOUNDARIES
    assert all(0 < position < len(tokens) and tokens[position] in _SPECIAL for position in found)
    longer = boundaries_of([*tokens, 5, 1], _SPECIAL)
    assert longer[-1] == len(tokens) + 1
    if len(found) < MOST_BOUNDARIES:
        assert set(found) <= set(longer)
