"""`/v1/rerank`; also `/rerank` and `/v2/rerank`, as vLLM and Cohere's clients have it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.access.identity import Caller
from api.answers.blocks import all_finished
from api.dialects.decisions.questions import statement
from api.dialects.decisions.routes import decision_request
from api.dialects.embeddings.encode import numbers, usage_object
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.rerank.schema import RerankRequest
from api.served_models import Served, ServedModels
from scheduler.events import Finished
from scheduler.request import GenerationRequest, Message


def rerank_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["rerank"], route_class=JsonRoute)

    @router.post("/v1/rerank", response_model=None)
    @router.post("/v2/rerank", response_model=None)
    @router.post("/rerank", response_model=None)
    async def rerank(body: Validated[RerankRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """The documents by their relevance to the query, the most relevant first."""
        served = models.check(body.model)
        public_id = f"rerank-{secrets.token_hex(12)}"

        async def made(start: int, end: int) -> list[GenerationRequest]:
            return await work(partial(rerank_requests, body, served, caller, public_id, start, end))

        ends = await all_finished(served.scheduler, len(body.documents), made)
        return work.response(rerank_object(public_id, served, body, ends), repeats=body.return_documents)

    return router


def rerank_requests(
    body: RerankRequest, served: Served, caller: Caller, public_id: str, start: int, end: int
) -> list[GenerationRequest]:
    """Return one request for each of these documents, with its own copy of the query. Those for a model that
    is no reranker and writes no text are refused by its scheduler."""
    embedder, fields = served.embedder, caller.fields(served.adapter, body.timeout, body.priority)
    if embedder is None:
        (read,) = _RELEVANT.reads()
        return [
            decision_request(public_id, (_pair(body, document.text),), _RELEVANT, read, fields)
            for document in body.documents[start:end]
        ]
    return [
        GenerationRequest(
            public_id=public_id,
            prompt=embedder.pair(body.query, document.text, body.instruction),
            kind="rerank",
            max_tokens=0,
            **fields,
        )
        for document in body.documents[start:end]
    ]


_RELEVANT = statement("The document answers the query.")
"""What a chat model is asked of a document, as Qwen3-Reranker is."""


def _pair(body: RerankRequest, document: str) -> Message:
    """Return the state of a decision. What is the same for all documents stands first: they share it."""
    instruction = f"Instruction: {body.instruction}\n\n" if body.instruction else ""
    return {"role": "user", "content": f"{instruction}Query: {body.query}\n\nDocument: {document}"}


def relevance_of(served: Served, end: Finished) -> float:
    if served.embedder is None:
        return _RELEVANT.probabilities([end.vector]).shares[0]
    return numbers(end.vector)[0]


def rerank_object(
    public_id: str, served: Served, body: RerankRequest, ends: Sequence[Finished]
) -> dict[str, Any]:
    """Return the ranking. Equally relevant documents stay in the order in which they were sent."""
    scores = [relevance_of(served, end) for end in ends]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    texts = [{"document": {"text": document.text}} for document in body.documents]
    return {
        "id": public_id,
        "model": served.name,
        "results": [
            {
                "index": index,
                "relevance_score": scores[index],
                **(texts[index] if body.return_documents else {}),
            }
            for index in order[: body.top_n]
        ],
        "usage": usage_object(ends),
    }
