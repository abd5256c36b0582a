"""How many prompt tokens fit between two tokens, learnt from the engine as it runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.pace import AUTOMATIC_RATIO, LEAST_TOKENS, PrefillPace


def _seconds(decoding: int, tokens: int, context: int) -> float:
    """A device: a decode step by rows, prefill by tokens, the longer the context the slower."""
    step = 0.010 + 0.0005 * decoding if decoding else 0.0
    return step + (0.002 + tokens * (0.0003 + 2e-8 * context) if tokens else 0.0)


def _taught(pace: PrefillPace, decoding: int, contexts: list[int]) -> PrefillPace:
    for _ in range(5):
        pace.observe(_seconds(decoding, 0, 0), decoding, 0, 0)
    for context in contexts:
        for _ in range(12):
            tokens = pace.tokens(decoding, context)
            pace.observe(_seconds(decoding, tokens, context), decoding, tokens, context)
    return pace


def test_with_nobody_decoding_chunks_are_as_large_as_they_may_be() -> None:
    """Nobody waits for a token: the device computes large chunks best."""
    assert PrefillPace(most_tokens=1024).tokens(0, 5000) == 1024


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    decoding=st.integers(1, 32),
    context=st.integers(0, 30_000),
    target=st.one_of(st.none(), st.floats(0.03, 0.5)),
)
def test_a_taught_pace_keeps_its_target(decoding: int, context: int, target: float | None) -> None:
    """Once it has seen such steps, one more takes about the target, or less; and never nothing."""
    pace = _taught(PrefillPace(2048, target), decoding, [context] * 3)
    tokens = pace.tokens(decoding, context)
    assert LEAST_TOKENS <= tokens <= 2048
    allowed = target if target is not None else AUTOMATIC_RATIO * _seconds(decoding, 0, 0)
    floor = _seconds(decoding, LEAST_TOKENS, context)
    assert _seconds(decoding, tokens, context) <= max(1.3 * allowed, 1.01 * floor)
    if allowed > 2 * floor:
        assert _seconds(decoding, tokens, context) >= 0.4 * allowed or tokens == 2048, "it dawdles"


def test_a_target_that_decoding_alone_exceeds_still_lets_prompts_go_on() -> None:
    """No prefill starves."""
    pace = _taught(PrefillPace(2048, target_seconds=0.001), 8, [0])
    assert pace.tokens(8, 0) == LEAST_TOKENS


def test_before_anything_is_known_it_is_careful() -> None:
    """The first prompt among streams gets a small chunk, not a large one."""
    pace = PrefillPace(2048)
    assert pace.tokens(8, 0) == 64
    pace.observe(0.01, 8, 0, 0)
    assert pace.tokens(8, 0) == 64


def test_it_follows_a_device_that_slows_down() -> None:
    """Heat, or another program: what was learnt is forgotten by and by."""
    pace = _taught(PrefillPace(2048, 0.1), 8, [0] * 3)
    before = pace.tokens(8, 0)
    for _ in range(40):
        tokens = pace.tokens(8, 0)
        pace.observe(4 * _seconds(8, tokens, 0), 8, tokens, 0)
    assert pace.tokens(8, 0) < before / 2


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_clock_that_stands_still_teaches_nothing(seconds: float) -> None:
    """Virtual clocks do."""
    pace = PrefillPace(512)
    pace.observe(seconds, 4, 100, 0)
    assert pace.speeds() == {}
    assert pace.decode_seconds(4) is None
