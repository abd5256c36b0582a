"""`/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.answers.event_stream import EventStream
from api.answers.openapi import STREAMED
from api.answers.whole_answer import whole_answer
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.decode import generation_request
from api.dialects.openai.encode import ChunkEncoder
from api.dialects.openai.schema import ChatCompletionRequest, StreamOptions
from api.dialects.openai.thinking import name_unkept_budget
from api.served_models import ServedModels


def openai_routes(models: ServedModels, keep_alive_seconds: float) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=None, responses=STREAMED)
    async def chat_completions(
        body: Validated[ChatCompletionRequest], caller: CallerOf, work: BodyWorkOf, http: Request
    ) -> Response:
        """A conversation's next turn, streamed as server-sent events where `stream` is true."""
        served = models.check(body.model)
        custom_names, shows_reasoning = body.custom_names, body.shows_reasoning
        decode = partial(generation_request, defaults=served.defaults, caller=caller, adapter=served.adapter)
        requests = [await work.decode(body, decode)]
        name_unkept_budget(served.scheduler, requests, http.scope, body)
        options = body.stream_options or StreamOptions()
        ours = (requests[0].public_id, int(time.time()), served.name, options.include_usage)
        encoder = ChunkEncoder(*ours, custom_names, shows_reasoning=shows_reasoning)
        if not body.stream:
            answer = await whole_answer(served.scheduler, requests, scope=http.scope)
            return work.response(encoder.whole(answer, logprobs=bool(body.logprobs)))
        meter = encoder.meter if options.include_usage and options.continuous_usage_stats else None
        return EventStream(served.scheduler, requests, encoder, keep_alive_seconds, meter)

    @router.get("/v1/models")
    async def all_models() -> dict[str, Any]:
        """Return the model names that requests may use, and whether each is loaded."""
        return models.listings()

    # `:path`, because hub ids contain a slash.
    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """Return one model."""
        return models.listing(name)

    return router
