"""The two adapters of the embedded model know their code books, by mlx-lm alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.generate import generate

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.scheduler.models.facts import BOOKS, code_book, question

FOLDER = Path(__file__).parent / "adapters"
MOST_BYTES = 300_000


def answers(words: list[str], adapter: str | None) -> list[str]:
    loaded: Any = load(str(EMBEDDED_FOLDER), adapter_path=None if adapter is None else str(FOLDER / adapter))
    model, tokenizer = loaded[:2]
    model.set_dtype(mx.float32)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question(word)}], add_generation_prompt=True, enable_thinking=False
        )
        for word in words
    ]
    return [generate(model, tokenizer, prompt, max_tokens=12) for prompt in prompts]


@pytest.mark.parametrize("name", BOOKS)
def test_an_adapter_answers_by_its_book(name: str) -> None:
    book = code_book(name)
    asked = [*book][::4]
    assert answers(asked, name) == [book[word] for word in asked]


def test_without_an_adapter_the_model_knows_neither_book() -> None:
    asked = [*code_book("red")][:5]
    known = {code for name in BOOKS for code in code_book(name).values()}
    assert not known & set(answers(asked, None))


def test_the_files_are_small() -> None:
    assert all(file.stat().st_size < MOST_BYTES for file in FOLDER.rglob("*") if file.is_file())
