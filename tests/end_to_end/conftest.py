"""One server of each kind for the tests that leave it unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.end_to_end.serving import Served, serving


@pytest.fixture(scope="session")
def random_weights() -> Iterator[Served]:
    """Random weights on real MLX, with every option at its default."""
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def embedded() -> Iterator[Served]:
    """The embedded model, with meaningful answers: `penstock serve` without an option."""
    with serving(trained=True) as served:
        yield served


@pytest.fixture(scope="session")
def scripted() -> Iterator[Served]:
    """The scripted engine: 8 slots, 2 ms a step."""
    with serving("--engine", "scripted", "--scripted", "step_seconds=0.002", "--max-slots", "8") as served:
        yield served


@pytest.fixture
def gpt(random_weights: Served) -> Iterator[openai.OpenAI]:
    """The official client of the model with random weights."""
    with openai.OpenAI(base_url=random_weights.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(random_weights: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=random_weights.url, api_key="unused", max_retries=0) as client:
        yield client
