"""`/v1/embeddings`.

A file of its own because every dialect has its routes in one.
"""

from __future__ import annotations

import time
from functools import partial

from fastapi import APIRouter
from fastapi.responses import Response

from api.auth import CallerOf
from api.embeddings.decode import embedding_requests
from api.embeddings.encode import embeddings_object
from api.embeddings.schema import EmbeddingRequest
from api.json_route import BodyWorkOf, JsonRoute, Validated
from api.served_models import ServedModels
from api.waves import all_finished

_BYTES_A_VALUE = {"float": 4, "base64": 64}
"""Of a vector, for each of the values in which the cost of a response is counted (`BodyWork`)."""


def embedding_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/embeddings", response_model=None)
    async def embeddings(body: Validated[EmbeddingRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """A vector of each text."""
        served, encoding = models.check(body.model), body.encoding_format
        decoded = await work.decode(body, partial(embedding_requests, embedder=served.embedder))
        requests = [caller.asks(request, served.adapter) for request in decoded]
        ends = await all_finished(served.scheduler, requests)
        public_id, created = requests[0].public_id, int(time.time())
        values = sum(len(end.vector) for end in ends) // _BYTES_A_VALUE[encoding]
        return await work.response(
            values, lambda: embeddings_object(public_id, created, served.name, ends, encoding)
        )

    return router
