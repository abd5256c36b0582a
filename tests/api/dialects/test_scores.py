"""`POST /v1/rerank` in Jina's, Cohere's and vLLM's form, `POST /v1/score` in vLLM's and in SGLang's."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from trio.testing import MockClock, trio_test

from api.dialects.readings import numbers
from api.served_models import ServedModel
from scheduler.engine.scripted_backend import digest, scripted_labels
from scheduler.prompt.embedder import Embedder
from scheduler.prompt.model_folder import ModelFolder
from scheduler.request import ChatPrompt, TextPrompt
from tests.api.client import client_of
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

RERANKER = Embedder(None, 1, default_prompt="be strict", has_roles=True, answers=(7, 3))
DOCUMENTS = ["apple", "hammer", "pear", "nail"]


async def post(
    body: dict[str, Any], path: str = "/v1/rerank", reranker: Embedder | None = RERANKER
) -> httpx.Response:
    folder = ModelFolder(Path("none"), 8192, 400, frozenset({EOS}), embedder=reranker)
    model = ServedModel(("ranker",), created=1, embedder=reranker)
    scheduler = make_scheduler(LoopbackLauncher(), folder=folder)
    async with running(scheduler), client_of(scheduler, model=model) as client:
        response = await client.post(
            path, json=body if path.endswith("score") else {"query": "a fruit", **body}
        )
        await scheduler.wait_idle()
    return response


def score(document: str, instruction: str | None = None) -> float:
    """What the scripted engine makes of the pair."""
    prompt = RERANKER.pair("a fruit", document, instruction)
    assert isinstance(prompt, ChatPrompt)
    tokenizer = ByteTokenizer()
    return RERANKER.relevance(found(tokenizer.encode(tokenizer.render(prompt)), 2))


def found(tokens: list[int], labels: int) -> list[float]:
    """What the scripted engine answers."""
    return numbers(scripted_labels(digest(tokens), labels))


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@trio_test
async def test_documents_come_by_relevance(path: str, autojump_clock: MockClock) -> None:
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
async def test_top_n_and_no_documents(autojump_clock: MockClock) -> None:
    """The best ones only, and without their texts; documents may be objects."""
    whole = (await post({"documents": DOCUMENTS})).json()["results"]
    objects = [{"text": document} for document in DOCUMENTS]
    body = {"documents": objects, "top_n": 2, "return_documents": False}
    short = (await post(body)).json()["results"]
    assert short == [{name: entry[name] for name in ("index", "relevance_score")} for entry in whole[:2]]
    for every in (99, 0):
        assert len((await post({"documents": DOCUMENTS, "top_n": every})).json()["results"]) == 4


@trio_test
async def test_a_query_is_not_copied_for_each_document(autojump_clock: MockClock) -> None:
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
async def test_an_instruction_goes_into_the_pair(autojump_clock: MockClock) -> None:
    """The body's, or the model's own."""
    body = {"documents": ["apple"], "instruction": "be kind"}
    (result,) = (await post(body)).json()["results"]
    assert result["relevance_score"] == score("apple", "be kind") != score("apple")


@trio_test
async def test_a_document_beyond_the_context_is_refused(autojump_clock: MockClock) -> None:
    response = await post({"documents": ["a", "x" * 500]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "documents")


SPELLINGS = [("text_1", "text_2"), ("queries", "documents"), ("queries", "items")]


@pytest.mark.parametrize(("first", "second"), SPELLINGS)
@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@trio_test
async def test_pairs_are_scored_in_their_order(
    first: str, second: str, path: str, autojump_clock: MockClock
) -> None:
    """By a reranker and by a chat model, in each spelling of vLLM's; one first text stands for all."""
    for sides in (("a fruit", DOCUMENTS), (["a fruit"], DOCUMENTS), (["a fruit"] * 4, DOCUMENTS)):
        response = await post({first: sides[0], second: sides[1]}, path)
        assert response.status_code == 200, response.text
        body = response.json()
        assert (body["object"], body["model"]) == ("list", "ranker")
        assert body["data"] == [
            {"index": index, "object": "score", "score": score(document)}
            for index, document in enumerate(DOCUMENTS)
        ]
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] > 0
    ranked = (await post({"documents": DOCUMENTS}, reranker=None)).json()["results"]
    body = (await post({first: "a fruit", second: DOCUMENTS}, path, None)).json()
    assert {one["index"]: one["score"] for one in body["data"]} == {
        one["index"]: one["relevance_score"] for one in ranked
    }


@pytest.mark.parametrize("softmax", [True, False])
@trio_test
async def test_labels_are_scored_behind_each_item(softmax: bool, autojump_clock: MockClock) -> None:
    """SGLang's form: no template, texts or token ids, the item behind the query or before it."""
    labels, asked_for = [65, 66, 65], {"label_token_ids": [65, 66, 65], "apply_softmax": softmax}
    forms: list[tuple[dict[str, Any], list[list[int]]]] = [
        ({"query": "q", "items": ["one", "two"]}, [[*b"qone"], [*b"qtwo"]]),
        ({"query": "q", "items": "one", "item_first": True}, [[*b"oneq"]]),
        ({"query": "", "items": ["one"]}, [[*b"one"]]),
        ({"query": [5, 6], "items": [[7], [8, 9]]}, [[5, 6, 7], [5, 6, 8, 9]]),
        ({"query": [5, 6], "items": [[7]], "item_first": True}, [[7, 5, 6]]),
    ]
    for form, prompts in forms:
        response = await post({**form, **asked_for}, "/v1/score", None)
        assert response.status_code == 200, response.text
        body = response.json()
        shares = [[math.exp(one) for one in found(prompt, 3)[:-1]] for prompt in prompts]
        if softmax:
            shares = [[one / sum(each) for one in each] for each in shares]
        assert body["scores"] == [pytest.approx(each) for each in shares]
        assert (body["object"], len(body["scores"][0])) == ("scoring", len(labels))
        assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))


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
    said = [(message["role"], message["content"]) for message in prompt.messages]
    assert said == [("system", "be strict"), ("query", "Q"), ("document", "D")]
