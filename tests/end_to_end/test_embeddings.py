"""An embedder and a reranker as they are served: real processes, OpenAI's own client, a killed engine."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import openai
import pytest

from scheduler.models.random_qwen3 import TINY
from scheduler.prompt.tokenizer import HubTokenizer
from tests.end_to_end.serving import Served, eventually, serving
from tests.fakes.embedder_folder import END, write_embedder, write_ending_tokenizer, write_reranker
from tests.scheduler.engine.mlx.pooling.qwen3_alone import Qwen3Alone, unit

TEXTS = [f"{'a longer text of many words ' * (number % 7)}number {number}" for number in range(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_embedder(tmp_path_factory.mktemp("models") / "embedder", shape=TINY)
    return write_ending_tokenizer(folder)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving("--model", str(folder), "--max-queue", "50", trained=True, last="page ") as server:
        yield server


def embed(served: Served, texts: list[str]) -> list[list[float]]:
    """By OpenAI's own client."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.embeddings.create(model=client.models.list().data[0].id, input=texts)
    assert [entry.index for entry in answer.data] == list(range(len(texts)))
    return [entry.embedding for entry in answer.data]


def test_vectors_are_those_of_each_text_alone(served: Served, folder: Path) -> None:
    """Through tokenizer, queue, link and engine; the text's last token is the one that the tokenizer adds."""
    tokenizer, reference = HubTokenizer(folder), Qwen3Alone(folder)
    for text, vector in zip(TEXTS[:12], embed(served, TEXTS[:12]), strict=True):
        expected = unit(reference.hidden([*tokenizer.encode(text), END])[-1])
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5)


def test_a_killed_engine_changes_no_vector(served: Served) -> None:
    """In the middle of a batch that is larger than the queue."""
    expected = embed(served, TEXTS)
    found: list[list[list[float]]] = []
    asking = threading.Thread(target=lambda: found.append(embed(served, TEXTS)))
    done = served.metric("penstock_requests_total")
    victim = served.engine_pid()
    asking.start()
    eventually(lambda: served.metric("penstock_requests_total") > done + 20)
    os.kill(victim, signal.SIGKILL)
    asking.join()
    assert served.engine_pid() != victim
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-6)


def test_chats_go_first_where_both_are_on_the_processor(served: Served) -> None:
    """The engine has a lower priority than its parent."""
    assert nice_of(served.engine_pid()) > nice_of(served.process.pid)


def nice_of(process: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, process)


def test_a_reranker_ranks(tmp_path: Path) -> None:
    """By the probability of its true token, the best document first."""
    folder = write_reranker(tmp_path / "reranker", shape=TINY)
    (folder / "chat_template.jinja").write_text(
        "{%- set query = messages | selectattr('role', 'eq', 'query') | first -%}"
        "{%- set document = messages | selectattr('role', 'eq', 'document') | first -%}"
        "{{ query.content }}|{{ document.content }}"
    )
    with serving("--model", str(folder), trained=True, last="page ") as server:
        body: dict[str, Any] = {"query": "q", "documents": ["a", "b", "c"], "top_n": 2}
        request = Request(
            f"{server.url}/v1/rerank", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urlopen(request, timeout=60) as answer:
            results = json.loads(answer.read())["results"]
    tokenizer, reference = HubTokenizer(folder), Qwen3Alone(folder)
    odds = []
    for document in body["documents"]:
        logits = reference.logits(tokenizer.encode(f"q|{document}"))
        odds.append(logits[7] - logits[3])
    order = sorted(range(3), key=lambda index: -odds[index])[:2]
    assert [result["index"] for result in results] == order
    for result in results:
        expected = 1 / (1 + np.exp(-odds[result["index"]]))
        assert abs(result["relevance_score"] - expected) < 1e-5
