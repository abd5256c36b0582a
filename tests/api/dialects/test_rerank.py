"""`POST /v1/rerank`: documents by their relevance, in Jina's, Cohere's and vLLM's form."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio.testing
from trio.testing import trio_test

from api.dialects.embeddings.encode import numbers
from api.served_models import ServedModel
from scheduler.engine.scripted_answers import digest, scripted_vector
from scheduler.prompt.embedder import Embedder
from scheduler.prompt.model_folder import ModelFolder
from scheduler.request import ChatPrompt, TextPrompt
from scheduler.shared.pooling import Pooler
from tests.api.client import client_of
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

RERANKER = Embedder(Pooler("rerank"), 1, default_prompt="be strict", has_roles=True)
DOCUMENTS = ["apple", "hammer", "pear", "nail"]


async def post(body: dict[str, Any], path: str = "/v1/rerank") -> httpx.Response:
    folder = ModelFolder(Path("none"), 8192, 400, frozenset({EOS}), embedder=RERANKER)
    model = ServedModel(("ranker",), created=1, context_tokens=400, embedder=RERANKER)
    scheduler = make_scheduler(LoopbackLauncher(), folder=folder)
    async with running(scheduler), client_of(scheduler, model=model) as client:
        response = await client.post(path, json={"query": "a fruit", **body})
        await scheduler.wait_idle()
    return response


def score(document: str, instruction: str | None = None) -> float:
    """What the scripted engine makes of the pair."""
    prompt = RERANKER.pair("a fruit", document, instruction)
    assert isinstance(prompt, ChatPrompt)
    tokenizer = ByteTokenizer()
    return numbers(scripted_vector(digest(tokenizer.encode(tokenizer.render(prompt))), 0))[0]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@trio_test
async def test_documents_come_by_relevance(path: str, autojump_clock: trio.testing.MockClock) -> None:
    """Each with its place in the request, its score and its text."""
    response = await post({"documents": DOCUMENTS}, path)
    assert response.status_code == 200, response.text
    body = response.json()
    scores = [score(document) for document in DOCUMENTS]
    order = sorted(range(4), key=lambda index: -scores[index])
    assert body["model"] == "ranker"
    assert body["results"] == [
        {"index": index, "relevance_score": scores[index], "document": {"text": DOCUMENTS[index]}}
        for index in order
    ]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] > 0


@trio_test
async def test_top_n_and_no_documents(autojump_clock: trio.testing.MockClock) -> None:
    """The best ones only, and without their texts; documents may be objects."""
    whole = (await post({"documents": DOCUMENTS})).json()["results"]
    objects = [{"text": document} for document in DOCUMENTS]
    body = {"documents": objects, "top_n": 2, "return_documents": False}
    short = (await post(body)).json()["results"]
    assert short == [{name: entry[name] for name in ("index", "relevance_score")} for entry in whole[:2]]
    assert len((await post({"documents": DOCUMENTS, "top_n": 99})).json()["results"]) == 4


@trio_test
async def test_a_query_is_not_copied_for_documents_that_still_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A body of some kilobytes would come to 80 MB, before the first document is accepted or refused."""
    body = {"query": "q" * 20_000, "instruction": "i" * 20_000, "documents": ["d"] * 2048}
    await post({"documents": DOCUMENTS})
    tracemalloc.start()
    try:
        response = await post(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 400, response.text
    assert peak < 20 << 20


@trio_test
async def test_an_instruction_goes_into_the_pair(autojump_clock: trio.testing.MockClock) -> None:
    """The body's, or the model's own."""
    body = {"documents": ["apple"], "instruction": "be kind"}
    (result,) = (await post(body)).json()["results"]
    assert result["relevance_score"] == score("apple", "be kind") != score("apple")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": "apple"}, "documents"),
        ({"documents": [1]}, "documents.0"),
        ({"documents": [{"title": "x"}]}, "documents.0.text"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": ["a"], "query": ""}, "query"),
        ({"documents": ["a"], "query": "x" * 40_000}, "query"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
        ({"documents": ["a"], "max_tokens_per_doc": 100}, "max_tokens_per_doc"),
        ({"documents": ["a", "x" * 500]}, "documents"),
    ],
)
@trio_test
async def test_what_cannot_be_ranked_is_refused_by_name(
    fields: dict[str, Any], param: str, autojump_clock: trio.testing.MockClock
) -> None:
    response = await post(fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_template_without_roles_gets_the_model_cards_prompt() -> None:
    """Qwen3-Reranker's, with its own instruction where nobody gives one."""
    plain = replace(RERANKER, has_roles=False, default_prompt="")
    prompt = plain.pair("Q", "D")
    assert isinstance(prompt, TextPrompt)
    assert prompt.text.startswith("<|im_start|>system\nJudge whether the Document")
    assert "<Instruct>: Given a web search query" in prompt.text
    assert prompt.text.endswith(
        "\n<Query>: Q\n<Document>: D<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_template_with_roles_gets_messages_of_them() -> None:
    prompt = RERANKER.pair("Q", "D")
    assert isinstance(prompt, ChatPrompt)
    assert [(message["role"], message["content"]) for message in prompt.messages] == [
        ("system", "be strict"),
        ("query", "Q"),
        ("document", "D"),
    ]
