"""Rows with different adapters share one batch, and each gets what mlx-lm's own LoRA layers give it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.link.messages import Cancel
from tests.scheduler.engine.mlx.adapters.adapted import AdaptedEngine, write_adapter
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import words

FAMILIES = ("llama", "qwen3", "mixtral", "deepseek_v2", "gemma2", "gpt_bigcode", "mamba2", "qwen3_next")


def two_adapters(family: str, folder: Path, **fields: object) -> AdaptedEngine:
    """Of different ranks and scales."""
    red = write_adapter(random_model(family), folder / "red", seed=1, rank=4, scale=2.0)
    blue = write_adapter(random_model(family), folder / "blue", seed=2, rank=7, scale=3.0)
    return AdaptedEngine(family, red, blue, **fields)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_has_the_tokens_of_its_adapter(family: str, tmp_path: Path) -> None:
    engine = two_adapters(family, tmp_path)
    red, blue = (source.key for source in engine.sources)
    prompts = [words(5 + 9 * number, number) for number in range(6)]
    keys = ["", red, blue, red, "", blue]
    heard = engine.ask(
        *(engine.submit(prompt, adapter=key) for prompt, key in zip(prompts, keys, strict=True))
    )
    assert all(len(one.tokens) == 7 for one in heard)


def test_one_prompt_has_three_answers(tmp_path: Path) -> None:
    """The adapters differ from each other and from the base, or no other test here could fail."""
    engine = two_adapters("qwen3", tmp_path)
    keys = ["", *(source.key for source in engine.sources)]
    heard = engine.ask(*(engine.submit(words(30, 1), adapter=key) for key in keys))
    assert len({tuple(one.tokens) for one in heard}) == 3


def test_prefixes_are_those_of_one_adapter(tmp_path: Path) -> None:
    """A prompt that is cached without an adapter, or with another one, is computed anew."""
    engine = two_adapters("qwen3", tmp_path)
    keys = ["", *(source.key for source in engine.sources)]
    prompt = words(40, 3)
    for key in keys:
        (heard,) = engine.ask(engine.submit(prompt, adapter=key))
        assert heard.cached == 0
    for key in keys:
        (heard,) = engine.ask(engine.submit(prompt, adapter=key))
        assert heard.cached == 39


def test_rows_join_and_leave(tmp_path: Path) -> None:
    engine = two_adapters("qwen3", tmp_path)
    red, blue = (source.key for source in engine.sources)
    running = []
    for number, key in enumerate(["", red, blue, blue, red, "", red, blue]):
        running.append(engine.submit(words(3 + 7 * number, number), adapter=key, max_tokens=4 + number))
        engine.turn([running[-1]])
        if number in (3, 6):
            engine.turn([Cancel(running[number - 2].request_id)])
        engine.turn()
    engine.finish()
    for number, submit in enumerate(running):
        if number in (1, 4):
            engine.check_beginning(submit)
        else:
            engine.check(submit)
