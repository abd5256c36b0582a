"""`/v1/completions`."""

from __future__ import annotations

import time
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.answers.event_stream import EventStream
from api.answers.openapi import STREAMED
from api.answers.whole_answer import whole_answer
from api.dialects.completions.decode import generation_requests
from api.dialects.completions.encode import CompletionEncoder, completion_object
from api.dialects.completions.schema import CompletionRequest
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.schema import StreamOptions
from api.dialects.thinking_budget import name_unkept_budget
from api.served_models import ServedModels
from scheduler.errors import InvalidRequest
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
        decoded = await work(partial(generation_requests, body, served.defaults, caller, served.adapter))
        requests = [
            name_unkept_budget(served.scheduler, request, http.scope, "thinking_token_budget")
            for request in decoded
        ]
        echoes = await _echoes(served.scheduler, body, caller.tenant)
        public_id, created = requests[0].public_id, int(time.time())
        if not body.stream:
            answer = await whole_answer(served.scheduler, *requests, lowered_by=_LOWERED_BY, scope=http.scope)
            return work.response(
                completion_object(
                    public_id,
                    created,
                    served.name,
                    answer,
                    echoes,
                    echo_logprobs=body.echo,
                    logprobs=body.logprobs,
                    prompt_logprobs=body.prompt_logprobs,
                )
            )
        options = body.stream_options or StreamOptions()
        include_usage = options.include_usage
        encoder = CompletionEncoder(public_id, created, served.name, echoes, include_usage=include_usage)
        meter = encoder.meter if include_usage and options.continuous_usage_stats else None
        return EventStream(served.scheduler, requests, encoder, keep_alive_seconds, meter)

    return router


MAX_ECHO_CHARACTERS = 1 << 20
"""The limit over all choices: the event loop copies them into one JSON text, 3 ms for each million."""


async def _echoes(scheduler: Scheduler, body: CompletionRequest, tenant: str) -> list[str]:
    """Return the text before each choice's answer: its prompt, or nothing. Raise InvalidRequest if they are
    too long."""
    each = body.n or 1
    if not body.echo:
        return [""] * (each * len(body.prompt))
    echoes: list[str] = []
    characters = 0
    for prompt in body.prompt:
        echo = (
            prompt
            if isinstance(prompt, str)
            else await scheduler.off_loop.detokenize(prompt, "prompt", tenant)
        )
        characters += each * len(echo)
        if characters > MAX_ECHO_CHARACTERS:
            raise InvalidRequest(
                f"echo: the prompts of all choices have more than {MAX_ECHO_CHARACTERS} characters",
                param="echo",
            )
        echoes.extend([echo] * each)
    return echoes
