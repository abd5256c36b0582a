"""An answer that repeats one phrase is over; any other goes on."""

from __future__ import annotations

from array import array
from itertools import cycle, islice

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.repetition import CHECKED_TOKENS, Repetition
from tests.examples import examples

RULES = st.builds(
    Repetition,
    span=st.integers(1, 80),
    least_phrase=st.integers(1, 4),
    most_phrase=st.integers(1, 12),
    copies=st.integers(2, 5),
)
TOKENS = st.lists(st.integers(0, 2), max_size=20)


def is_cycle(rule: Repetition, tokens: list[int]) -> bool:
    """The rule read word by word: some phrase, laid out again and again, is the end of the answer."""
    for phrase in range(rule.least_phrase, rule.most_phrase + 1):
        span = max(rule.span, phrase * rule.copies)
        end = tokens[-span:]
        if len(end) == span and end == list(islice(cycle(end[:phrase]), span)):
            return True
    return False


@example(Repetition(1, 2, 2, 2), [0], [1, 2], 16)
@given(RULES, TOKENS, TOKENS.filter(bool), st.integers(0, 160))
@settings(max_examples=examples(400))
def test_an_answer_is_over_at_the_first_look_that_finds_a_cycle(
    rule: Repetition, before: list[int], phrase: list[int], count: int
) -> None:
    tokens = before + list(islice(cycle(phrase), count))
    for length in range(1, len(tokens) + 1):
        looked_at = length % CHECKED_TOKENS == 0
        assert rule.ends(array("I", tokens[:length])) == (looked_at and is_cycle(rule, tokens[:length]))
