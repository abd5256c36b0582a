"""Prompts have the given length, are the same for the same key, and new in a new run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from loadtests.prompts import WORDS, Prompts
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER

keys = st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=3)


@settings(derandomize=True, deadline=None)
@given(tokens=st.floats(0, 2000), ratio=st.floats(0.5, 3.0), key=keys, more=st.integers(0, 50))
def test_a_text_has_the_words_for_its_tokens(
    tokens: float, ratio: float, key: list[object], more: int
) -> None:
    """Never empty, to the word; and a shorter text of a key begins a longer one."""
    prompts = Prompts("salt", ratio)
    text = prompts.text(tokens, *key)
    assert abs(len(text.split(" ")) - max(1.0, tokens / ratio)) <= 0.5
    assert prompts.text(tokens + more, *key).startswith(text)
    assert prompts.layer(tokens, *key) == text == Prompts("salt", ratio).text(tokens, *key)


def test_the_ratio_of_tokens_to_words_is_stable() -> None:
    """Measured once on any text, it holds for all: within 2 % on the bench model's tokenizer."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json"))
    for length in (64, 1500, 6000):
        for key in range(3):
            text = Prompts("salt", 1.0).text(length, key)
            assert len(tokenizer.encode(text).ids) == pytest.approx(length, rel=0.02)


def test_another_run_or_another_key_differs_from_the_first_words_on() -> None:
    """Two texts share a word or two by chance, less than any cache's block."""
    texts = [
        Prompts(f"run {run}", 1.0).text(8, "shared", layer).split() for run in range(20) for layer in "ab"
    ]
    assert len({tuple(text[:3]) for text in texts}) == len(texts)


def test_the_words_are_different_words() -> None:
    """A word listed twice would be drawn twice as often."""
    assert len(set(WORDS)) == len(WORDS) > 250
