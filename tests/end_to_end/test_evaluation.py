"""What an evaluation harness measures with this server: log-likelihoods, on the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.end_to_end.serving import Served

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
