"""`/v1/chat/completions` and `/v1/models`.

A file of its own because every dialect's folder has the same four.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.auth import CallerOf
from api.event_stream import EventStream
from api.json_route import BodyWorkOf, JsonRoute, Validated
from api.openai.decode import generation_request
from api.openai.encode import ChunkEncoder, completion_object
from api.openai.schema import ChatCompletionRequest
from api.openapi import STREAMED
from api.served_model import ServedModel
from api.whole_answer import whole_answer
from scheduler.service import Scheduler


def openai_routes(scheduler: Scheduler, model: ServedModel, keep_alive_seconds: float) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=None, responses=STREAMED)
    async def chat_completions(
        body: Validated[ChatCompletionRequest], caller: CallerOf, work: BodyWorkOf
    ) -> Response:
        """Answer a conversation's next turn, streamed as server-sent events if `stream` is true."""
        model.check(body.model)
        request = caller.asks(await work.decode(body, lambda: generation_request(body)))
        created = int(time.time())
        if not body.stream:
            answer = await whole_answer(scheduler, request)
            logprobs = bool(body.logprobs)
            return JSONResponse(
                completion_object(request.public_id, created, model.name, answer, logprobs=logprobs)
            )
        options = body.stream_options
        include_usage = options is not None and options.include_usage
        encoder = ChunkEncoder(request.public_id, created, model.name, include_usage)
        return EventStream(scheduler, request, encoder, keep_alive_seconds)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Return the model names that requests may use."""
        return model.listings()

    # `:path`, because hub ids contain a slash.
    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """Return one model."""
        model.check(name)
        return model.listing(name)

    return router
