"""What an evaluation harness measures with this server: log-likelihoods, on the embedded model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from scheduler.models.random_qwen3 import TINY, TOKENIZER_FILES, TOKENIZER_FOLDER
from tests.end_to_end.serving import Served, serving
from tests.scheduler.engine.mlx.zoo.census import SMALL, write

CONTEXT = "The capital of France is"
OTHERS = [" a town.", " not known to me", "\n\nParis"]


@pytest.fixture
def client(embedded: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=embedded.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any, **fields: Any) -> list[Any]:
    answer = client.completions.create(
        model="penstock-embedded", prompt=prompt, temperature=0, logprobs=1, **fields
    )
    return sorted(answer.choices, key=lambda choice: choice.index)


def test_an_answer_has_as_a_prompt_the_probability_that_it_had(client: openai.OpenAI) -> None:
    """What the model said, asked again as lm-eval asks: the same numbers, and the likeliest ones; twice, so
    that it is cached."""
    (said,) = complete(client, CONTEXT, max_tokens=12)
    own = said.logprobs.token_logprobs
    for _ in range(2):
        echoed, *others = complete(
            client,
            [CONTEXT + text for text in (said.text, *OTHERS)],
            max_tokens=1,
            echo=True,
            extra_body={"seed": 1234},
        )
        assert echoed.text.startswith(CONTEXT + said.text)
        found = echoed.logprobs
        assert found.token_logprobs[0] is None
        assert found.token_logprobs[-1 - len(own) : -1] == pytest.approx(own, abs=1e-3)
        for value, top in zip(
            found.token_logprobs[-1 - len(own) : -1], found.top_logprobs[-1 - len(own) : -1], strict=True
        ):
            assert value == max(top.values())
        for other in others:
            assert sum(other.logprobs.token_logprobs[1:-1]) < 0


def test_chat_prompts_have_them_in_vllms_shape(client: openai.OpenAI) -> None:
    """One for each token of the rendered conversation, the tools' text included."""
    answer = client.chat.completions.create(
        model="penstock-embedded",
        messages=[{"role": "user", "content": "What is 2+2?"}],
        max_tokens=4,
        extra_body={"prompt_logprobs": 2},
    )
    assert answer.usage is not None
    listed: Any = answer.model_extra["prompt_logprobs"] if answer.model_extra else []
    assert len(listed) == answer.usage.prompt_tokens
    assert listed[0] is None
    assert all(2 <= len(entry) <= 3 for entry in listed[1:])


@pytest.mark.timeout(300)
def test_a_context_and_the_same_with_its_end_cost_no_engine_of_a_model_with_windows(tmp_path: Path) -> None:
    """Both in one body, as a harness asks, that end with their first token: each is answered, again and
    again, and has the probabilities that it has alone."""
    write("gpt_oss", tmp_path, vocab_size=TINY.vocabulary, **SMALL)
    for name in TOKENIZER_FILES:
        shutil.copy(TOKENIZER_FOLDER / name, tmp_path)
    model = (
        "--model",
        str(tmp_path),
        "--served-model-name",
        "penstock-embedded",
        "--weights-dtype",
        "float32",
    )
    with (
        serving(*model, trained=True) as served,
        openai.OpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        for number in range(3):
            context = f"Case {number}: the mill stands by the river and turns all night; the miller is"
            for fields in (
                {"max_tokens": 1},
                {"max_tokens": 0, "echo": True},
                {"max_tokens": 1, "echo": True},
            ):
                asked = [context, context + " asleep"]
                together = complete(client, asked, **fields)
                for choice, prompt in zip(together, asked, strict=True):
                    (one,) = complete(client, prompt, **fields)
                    assert choice.text == one.text
                    values, alone = (found.logprobs.token_logprobs for found in (choice, one))
                    assert values[1:] == pytest.approx(alone[1:], abs=1e-3)
        assert served.metric("penstock_engine_deaths_total") == 0
