"""`/v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.answers.event_stream import EventStream
from api.answers.openapi import STREAMED
from api.answers.whole_answer import whole_answer
from api.dialects.completions.decode import generation_requests
from api.dialects.completions.encode import CompletionEncoder
from api.dialects.completions.schema import CompletionRequest
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.schema import StreamOptions
from api.dialects.openai.thinking import name_unkept_budget
from api.served_models import ServedModels
from scheduler.errors import InvalidRequest
from scheduler.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from scheduler.service import Scheduler

_LOWERED_BY = ("logprobs", "n", "max_tokens")


def completions_routes(models: ServedModels, keep_alive_seconds: float) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/completions", response_model=None, responses=STREAMED)
    async def completions(
        body: Validated[CompletionRequest], caller: CallerOf, work: BodyWorkOf, http: Request
    ) -> Response:
        """The rest of each prompt, streamed as server-sent events where `stream` is true."""
        served = models.check(body.model)
        decode = partial(generation_requests, defaults=served.defaults, caller=caller, adapter=served.adapter)
        requests = await work.decode(body, decode)
        name_unkept_budget(served.scheduler, requests, http.scope, body)
        echoes = await _echoes(served.scheduler, requests, caller.tenant, whole=body.echo)
        options = body.stream_options or StreamOptions()
        ours = (requests[0].public_id, int(time.time()), served.name)
        encoder = CompletionEncoder(*ours, echoes, include_usage=options.include_usage)
        if not body.stream:
            answer = await whole_answer(served.scheduler, requests, lowered_by=_LOWERED_BY, scope=http.scope)
            wanted = body.logprobs is not None
            return work.response(encoder.whole(answer, logprobs=wanted, echo_logprobs=body.echo))
        meter = encoder.meter if options.include_usage and options.continuous_usage_stats else None
        return EventStream(served.scheduler, requests, encoder, keep_alive_seconds, meter)

    return router


MAX_ECHO_CHARACTERS = 1 << 20
"""The limit over all choices: the event loop copies them into one JSON text, 3 ms for each million."""


async def _echoes(
    scheduler: Scheduler, requests: Sequence[GenerationRequest], tenant: str, *, whole: bool
) -> list[str]:
    """Return the text before each choice's answer: its prompt if `whole`, or nothing. Raise InvalidRequest if
    they are too long."""
    each = requests[0].choices
    if not whole:
        return [""] * (each * len(requests))
    echoes: list[str] = []
    characters = 0
    for request in requests:
        match request.prompt:
            case TextPrompt(text=echo):
                pass
            case TokenPrompt(token_ids=token_ids):
                echo = await scheduler.off_loop.detokenize(token_ids, "prompt", tenant)
            case ChatPrompt():
                raise AssertionError("completions have no chats")
        characters += each * len(echo)
        if characters > MAX_ECHO_CHARACTERS:
            raise InvalidRequest(
                f"echo: the prompts of all choices have more than {MAX_ECHO_CHARACTERS} characters",
                param="echo",
            )
        echoes.extend([echo] * each)
    return echoes
