"""An embedder and a reranker as they are served: real processes, OpenAI's own client, a killed engine."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from scheduler.models.random_qwen3 import TINY
from scheduler.prompt.tokenizer import HubTokenizer
from tests.end_to_end.serving import Served, eventually, serving
from tests.fakes.embedder_folder import END, write_embedder, write_ending_tokenizer, write_reranker
from tests.scheduler.engine.mlx.pooling.qwen3_alone import Qwen3Alone, unit

TEXTS = [f"{'a longer text of many words ' * (number % 7)}number {number}" for number in range(120)]


def embed(served: Served, texts: list[str]) -> list[list[float]]:
    """By OpenAI's own client."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.embeddings.create(model=client.models.list().data[0].id, input=texts)
    assert [entry.index for entry in answer.data] == list(range(len(texts)))
    return [entry.embedding for entry in answer.data]


def test_vectors_are_those_of_a_numpy_forward_pass(tmp_path: Path) -> None:
    """Through tokenizer, queue, link and engine; the text's last token is the one that the tokenizer adds. An
    engine that is killed in the middle of a batch that is larger than the queue changes none. An engine has a
    lower priority than its parent, so that chats go first where both are on the processor."""
    folder = write_ending_tokenizer(write_embedder(tmp_path / "embedder", shape=TINY))
    with serving("--model", str(folder), "--max-queue", "50", trained=True, last="page ") as served:
        expected = embed(served, TEXTS)
        tokenizer, reference = HubTokenizer(folder), Qwen3Alone(folder)
        for text, vector in zip(TEXTS[:12], expected, strict=False):
            one = unit(reference.hidden([*tokenizer.encode(text), END])[-1])
            np.testing.assert_allclose(vector, one, rtol=0, atol=1e-5)
        done, victim = served.metric("penstock_requests_total"), served.engine_pid()
        nice, usual = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (victim, served.process.pid))
        assert nice > usual
        with ThreadPoolExecutor() as threads:
            found = threads.submit(embed, served, TEXTS)
            eventually(lambda: served.metric("penstock_requests_total") > done + 20)
            os.kill(victim, signal.SIGKILL)
        np.testing.assert_allclose(found.result(), expected, rtol=0, atol=1e-6)
        assert served.engine_pid() != victim


def test_a_reranker_ranks(tmp_path: Path) -> None:
    """By the probability of its true token, the best document first."""
    folder = write_reranker(tmp_path / "reranker", shape=TINY)
    (folder / "chat_template.jinja").write_text(
        "{%- set query = messages | selectattr('role', 'eq', 'query') | first -%}"
        "{%- set document = messages | selectattr('role', 'eq', 'document') | first -%}"
        "{{ query.content }}|{{ document.content }}"
    )
    body: dict[str, Any] = {"query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    with serving("--model", str(folder), trained=True, last="page ") as server:
        results = server.post("/v1/rerank", **body)[1]["results"]
    tokenizer, reference = HubTokenizer(folder), Qwen3Alone(folder)
    odds = []
    for document in body["documents"]:
        logits = reference.logits(tokenizer.encode(f"q|{document}"))
        odds.append(logits[7] - logits[3])
    order = sorted(range(3), key=lambda index: -odds[index])[:2]
    assert [result["index"] for result in results] == order
    expected = [1 / (1 + np.exp(-odds[index])) for index in order]
    assert [result["relevance_score"] for result in results] == pytest.approx(expected, abs=1e-5)
