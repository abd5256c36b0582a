"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.answers.event_stream import EventStream
from api.answers.openapi import STREAMED
from api.answers.whole_answer import whole_answer
from api.dialects.anthropic.decode import chat_prompt, generation_request
from api.dialects.anthropic.encode import MessageEncoder, message_object
from api.dialects.anthropic.schema import CountTokensRequest, MessagesRequest
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.thinking import name_unkept_budget
from api.served_models import ServedModels


def anthropic_routes(models: ServedModels, keep_alive_seconds: float) -> APIRouter:
    """Return the routes. Any `anthropic-version` is accepted: this API has one version."""
    router = APIRouter(tags=["anthropic"], route_class=JsonRoute)

    @router.post("/v1/messages", response_model=None, responses=STREAMED)
    async def messages(
        body: Validated[MessagesRequest], caller: CallerOf, work: BodyWorkOf, http: Request
    ) -> Response:
        """A conversation's next turn, streamed as server-sent events where `stream` is true."""
        served = models.check(body.model)
        decode = partial(generation_request, defaults=served.defaults, caller=caller, adapter=served.adapter)
        requests = [await work.decode(body, decode)]
        name_unkept_budget(served.scheduler, requests, http.scope, body)
        public_id, show_thinking = requests[0].public_id, _shows_thinking(body)
        if not body.stream:
            answer = await whole_answer(
                served.scheduler, requests, lowered_by=("max_tokens",), scope=http.scope
            )
            message = message_object(public_id, served.name, answer, show_thinking=show_thinking)
            return work.response(message)
        encoder = MessageEncoder(public_id, served.name, show_thinking=show_thinking)
        return EventStream(served.scheduler, requests, encoder, keep_alive_seconds)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(
        body: Validated[CountTokensRequest], caller: CallerOf, work: BodyWorkOf
    ) -> dict[str, Any]:
        """Return how many tokens `/v1/messages` would make of the same body: exactly, not an estimate."""
        served = models.check(body.model)
        prompt = await work.decode(body, partial(chat_prompt, defaults=served.defaults))
        return {"input_tokens": len(await served.scheduler.tokenize(prompt, caller.tenant))}

    return router


def _shows_thinking(body: MessagesRequest) -> bool:
    thinking = body.thinking
    return thinking is None or thinking.type == "disabled" or thinking.display != "omitted"
