"""`/v1/rerank` and `/v1/score`, which other servers and Cohere's clients also have as `/rerank`,
`/v2/rerank` and `/score`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.dialects.completions.schema import PromptItem
from api.dialects.decisions.questions import asked, distribution, statement
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.readings import numbers, read, usage_object
from api.dialects.scores.schema import RerankRequest, ScoreRequest
from api.served_models import Served, ServedModels
from scheduler.events import Finished
from scheduler.request import GenerationRequest

_RELEVANT = statement("The document answers the query.")
"""What a chat model is asked of a document, as Qwen3-Reranker is."""


def score_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["scores"], route_class=JsonRoute)

    @router.post("/v1/rerank", response_model=None)
    @router.post("/v2/rerank", response_model=None)
    @router.post("/rerank", response_model=None)
    async def rerank(body: Validated[RerankRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """The documents by their relevance to the query, the most relevant first."""
        served, documents = models.check(body.model), [document.text for document in body.documents]
        compare = partial(_compared, served, body.instruction, body.query)
        public_id, ends = await read(served, caller, body, work, documents, compare, "documents")
        scores = [_relevance(served, end) for end in ends]
        # Equally relevant documents stay in the order in which they were sent.
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": scores[index]} for index in order[: body.top_n or None]
        ]
        if body.return_documents:
            results = [{**one, "document": {"text": documents[one["index"]]}} for one in results]
        ranking = {"id": public_id, "model": served.name, "results": results, "usage": usage_object(ends)}
        return work.response(ranking, repeats=body.return_documents)

    @router.post("/v1/score", response_model=None)
    @router.post("/score", response_model=None)
    async def score(body: Validated[ScoreRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """How relevant texts are to others, or how likely given tokens are behind a prompt."""
        served, created = models.check(body.model), int(time.time())
        _, field = body.sides
        if body.label_token_ids is not None:
            labels = tuple(body.label_token_ids)

            def continued(item: PromptItem) -> GenerationRequest:
                return GenerationRequest(public_id="", prompt=body.prompt_of(item), labels=labels)

            _, ends = await read(served, caller, body, work, body.items or (), continued, field)
            found = [_likely(end, of_labels=body.apply_softmax) for end in ends]
            scores = {"object": "scoring", "model": served.name, "scores": found, "usage": usage_object(ends)}
            return work.response(scores)

        def compared(pair: tuple[str, str]) -> GenerationRequest:
            return _compared(served, body.instruction, *pair)

        public_id, ends = await read(served, caller, body, work, body.pairs, compared, field)
        data = [
            {"index": index, "object": "score", "score": _relevance(served, end)}
            for index, end in enumerate(ends)
        ]
        head = {"id": public_id, "object": "list", "created": created, "model": served.name}
        return work.response({**head, "data": data, "usage": usage_object(ends)})

    return router


def _compared(served: Served, instruction: str | None, query: str, document: str) -> GenerationRequest:
    """Return the request for the relevance of a document. One for a model that is no reranker and writes no
    text is refused by its scheduler."""
    if (embedder := served.embedder) is not None:
        prompt = embedder.pair(query, document, instruction)
        return GenerationRequest(public_id="", prompt=prompt, kind="rerank", labels=embedder.answers)
    # What is the same for all documents stands first: they share it.
    before = f"Instruction: {instruction}\n\n" if instruction else ""
    state = {"role": "user", "content": f"{before}Query: {query}\n\nDocument: {document}"}
    (one,) = _RELEVANT.reads()
    return asked((state,), _RELEVANT, one)


def _relevance(served: Served, end: Finished) -> float:
    if served.embedder is None:
        return distribution(end.vector).shares[0]
    return served.embedder.relevance(numbers(end.vector))


def _likely(end: Finished, *, of_labels: bool) -> Sequence[float]:
    """Return each label's probability, of all tokens or of the labels alone."""
    if of_labels:
        return distribution(end.vector).shares
    return [min(1.0, math.exp(one)) for one in numbers(end.vector)[:-1]]
