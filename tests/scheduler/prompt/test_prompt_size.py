"""Which prompts are tokenized one at a time."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.prompt.prompt_size import LARGE_CHARACTERS, is_large
from scheduler.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt, Tool

TEXT = "x" * LARGE_CHARACTERS
HALF = TEXT[: LARGE_CHARACTERS // 2 + 1]


def chat(*contents: Any, **fields: Any) -> ChatPrompt:
    return ChatPrompt(tuple({"role": "user", "content": content} for content in contents), **fields)


@pytest.mark.parametrize(
    ("prompt", "large"),
    [
        pytest.param(TextPrompt(TEXT), False, id="a text"),
        pytest.param(TextPrompt(TEXT + "x"), True, id="a longer text"),
        pytest.param(TokenPrompt((1,) * (LARGE_CHARACTERS + 1)), False, id="tokens"),
        pytest.param(chat(HALF), False, id="a message"),
        pytest.param(chat(HALF, HALF), True, id="messages"),
        pytest.param(chat([{"type": "text", "text": HALF}] * 2), True, id="parts of a message"),
        pytest.param(chat(HALF, tools=(Tool("read", HALF),)), True, id="a tool"),
        pytest.param(chat(HALF, template_options={"documents": [HALF]}), True, id="documents"),
        pytest.param(chat(template_options={"numbers": [0] * LARGE_CHARACTERS}), True, id="many small ones"),
    ],
)
def test_a_prompt_is_large_by_all_the_text_that_its_template_may_write(prompt: Prompt, large: bool) -> None:
    """Wherever it stands; tokens are no text any more."""
    assert is_large(prompt) == large


def test_only_so_many_values_are_looked_at() -> None:
    """The rest is counted in a thread."""
    many = chat(*["x"] * 10_000)
    assert is_large(many, max_values=2048) is None
    assert is_large(many) is False
    assert is_large(chat("x"), max_values=2048) is False
    assert is_large(chat(HALF, HALF), max_values=2048) is True
