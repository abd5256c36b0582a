"""`/v1/embeddings`."""

from __future__ import annotations

import secrets
import time
from functools import partial

from fastapi import APIRouter
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.answers.blocks import all_finished
from api.dialects.embeddings.decode import embedding_requests
from api.dialects.embeddings.encode import embeddings_object
from api.dialects.embeddings.schema import EmbeddingRequest
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.served_models import ServedModels
from scheduler.request import GenerationRequest


def embedding_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/embeddings", response_model=None)
    async def embeddings(body: Validated[EmbeddingRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """A vector of each text."""
        served, encoding = models.check(body.model), body.encoding_format
        public_id, created = f"embd-{secrets.token_hex(12)}", int(time.time())

        async def made(start: int, end: int) -> list[GenerationRequest]:
            make = partial(embedding_requests, body, served.embedder, public_id, start, end)
            return [caller.asks(request, served.adapter) for request in await work(make)]

        ends = await all_finished(served.scheduler, len(body.input), made)
        return work.response(embeddings_object(public_id, created, served.name, ends, encoding))

    return router
