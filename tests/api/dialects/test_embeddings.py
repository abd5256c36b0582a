"""`POST /v1/embeddings`: a vector of each text, through the queue that all requests go through."""

from __future__ import annotations

import base64
import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from trio.testing import MockClock, trio_test

from api.dialects.readings import numbers
from api.served_models import ServedModel
from scheduler.engine.scripted_backend import digest, scripted_vector
from scheduler.prompt.embedder import Embedder
from scheduler.prompt.model_folder import ModelFolder
from scheduler.service import Scheduler
from scheduler.shared.pooling import Pooler
from tests.api.client import chat, client_of
from tests.fakes.byte_tokenizer import EOS
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

EMBEDDER = Embedder(Pooler(), 16, prompts={"query": "Query: ", "document": ""}, matryoshka=(4, 8))
CONTEXT = 400
FOLDER = ModelFolder(Path("none"), 8192, CONTEXT, frozenset({EOS}), embedder=EMBEDDER)
JSON = {"content-type": "application/json"}
MODEL = ServedModel(("tiny",), created=1_700_000_000, embedder=EMBEDDER)


def embedding_scheduler(embedder: Embedder = EMBEDDER, **options: Any) -> Scheduler:
    return make_scheduler(LoopbackLauncher(), folder=replace(FOLDER, embedder=embedder), **options)


async def post(body: dict[str, Any], embedder: Embedder = EMBEDDER) -> httpx.Response:
    """The answer of a server of its own, which nothing is left of afterwards."""
    scheduler = embedding_scheduler(embedder)
    model = replace(MODEL, embedder=embedder)
    async with running(scheduler), client_of(scheduler, model=model) as client:
        # Not httpx's own encoding, which has no lone surrogates.
        response = await client.post("/v1/embeddings", content=json.dumps(body), headers=JSON)
        await scheduler.wait_idle()
    return response


def vector(tokens: list[int], dimensions: int = 0) -> list[float]:
    return numbers(scripted_vector(digest(tokens), dimensions))


def text_tokens(text: str) -> list[int]:
    """With what the tokenizer puts behind a text."""
    return [*text.encode(), EOS]


@trio_test
async def test_every_form_of_input_has_its_vectors_in_order(autojump_clock: MockClock) -> None:
    """A text, texts, token ids and lists of them, which are taken as they are; as numbers and in base64."""
    forms: list[tuple[Any, list[list[int]]]] = [
        ("one", [text_tokens("one")]),
        (["one", "two"], [text_tokens("one"), text_tokens("two")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["one", [7]], [text_tokens("one"), [7]]),
    ]
    for given_input, prompts in forms:
        response = await post({"input": given_input})
        assert response.status_code == 200, response.text
        body = response.json()
        assert (body["object"], body["model"]) == ("list", "tiny")
        assert [entry["index"] for entry in body["data"]] == list(range(len(prompts)))
        assert [entry["embedding"] for entry in body["data"]] == [vector(prompt) for prompt in prompts]
        packed = (await post({"input": given_input, "encoding_format": "base64"})).json()["data"]
        floats = [array("f", base64.b64decode(entry["embedding"])).tolist() for entry in packed]
        assert floats == [vector(prompt) for prompt in prompts]
        tokens = sum(map(len, prompts))
        assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": [9000]}, "outside the vocabulary"),
        ({"input": [-1]}, "outside the vocabulary"),
        (
            {"input": "x" * CONTEXT},
            f"context length is {CONTEXT} tokens. However, your request has {CONTEXT + 1} input tokens",
        ),
        ({"input": "x" * 9000}, "your request has at least 4096 input tokens"),
        ({"dimensions": 5}, "4 or 8 or 16"),
        ({"truncate_prompt_tokens": 500}, "context 400"),
        ({"prompt_name": "other"}, "'query', 'document'"),
    ],
)
@trio_test
async def test_what_this_model_cannot_embed_is_refused_by_name(
    fields: dict[str, Any], words: str, autojump_clock: MockClock
) -> None:
    """With the numbers, before anything reaches the engine."""
    response = await post({"input": "a", **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, next(iter(fields)))
    assert words in error["message"]


@trio_test
async def test_a_text_may_fill_the_context(autojump_clock: MockClock) -> None:
    """Nothing is written behind it, so no room is kept for an answer."""
    response = await post({"input": "x" * (CONTEXT - 1)})
    assert response.json()["usage"]["prompt_tokens"] == CONTEXT


@pytest.mark.parametrize(("most", "kept"), [(4, b"xyz"), (1, b""), (-1, b"xyz" + b"w" * 396)])
@trio_test
async def test_a_truncated_text_keeps_its_end_token(
    most: int, kept: bytes, autojump_clock: MockClock
) -> None:
    """vLLM's `truncate_prompt_tokens`: the first tokens count, -1 as many as the context has. The vector of a
    last-token embedder is that of the end token, which stays."""
    response = await post({"input": "xyz" + "w" * 1000, "truncate_prompt_tokens": most})
    assert response.json()["data"][0]["embedding"] == vector([*kept, EOS])


@trio_test
async def test_dimensions_are_the_models(autojump_clock: MockClock) -> None:
    """Those that its config.json names, and the whole vector; without any only the whole."""
    models: list[tuple[Any, tuple[int, ...], int]] = [
        ((4, 8), (4, 8, 16), 5),
        (False, (16,), 8),
        (True, (5,), 17),
    ]
    for matryoshka, has, lacks in models:
        embedder = replace(EMBEDDER, matryoshka=matryoshka)
        for dimensions in has:
            found = (await post({"input": "a", "dimensions": dimensions}, embedder)).json()["data"]
            assert found[0]["embedding"] == vector(text_tokens("a"))[:dimensions]
        refused = await post({"input": "a", "dimensions": lacks}, embedder)
        assert refused.status_code == 400
        assert matryoshka or "is_matryoshka" in refused.json()["error"]["message"]


@trio_test
async def test_a_named_prompt_goes_before_each_text(autojump_clock: MockClock) -> None:
    """As the model's sentence-transformers files have it; the default one where a body names none."""
    body = (await post({"input": ["a", "b"], "prompt_name": "query"})).json()
    assert [entry["embedding"] for entry in body["data"]] == [
        vector(text_tokens("Query: a")),
        vector(text_tokens("Query: b")),
    ]
    body = (await post({"input": "a"}, replace(EMBEDDER, default_prompt="doc: "))).json()
    assert body["data"][0]["embedding"] == vector(text_tokens("doc: a"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat()),
        ("/v1/chat/completions", chat(stream=True)),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [7]}),
    ],
)
@trio_test
async def test_an_embedder_answers_nothing_else(
    path: str, body: dict[str, Any], autojump_clock: MockClock
) -> None:
    """400 in the client's own dialect, also where it asked for a stream."""
    scheduler = embedding_scheduler()
    async with running(scheduler), client_of(scheduler, model=MODEL) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400
    assert "it answers /v1/embeddings" in response.json()["error"]["message"]
    assert (response.json().get("type") == "error") == (path == "/v1/messages")


@trio_test
async def test_models_say_what_they_are_for(autojump_clock: MockClock) -> None:
    scheduler = embedding_scheduler()
    async with running(scheduler), client_of(scheduler, model=MODEL) as client:
        (listed,) = (await client.get("/v1/models")).json()["data"]
    assert (listed["task"], listed["dimensions"]) == ("embedding", 16)
    assert listed["supported_endpoints"] == ["/v1/embeddings"]
