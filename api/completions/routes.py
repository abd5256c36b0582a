"""`/v1/completions`."""

from __future__ import annotations

import time

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.auth import CallerOf
from api.completions.decode import generation_requests
from api.completions.encode import CompletionEncoder, completion_object
from api.completions.schema import CompletionRequest
from api.event_stream import EventStream
from api.json_route import BodyWorkOf, JsonRoute, Validated
from api.openapi import STREAMED
from api.served_model import ServedModel
from api.whole_answer import whole_answer
from scheduler.errors import InvalidRequest
from scheduler.service import Scheduler


def completions_routes(scheduler: Scheduler, model: ServedModel, keep_alive_seconds: float) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/completions", response_model=None, responses=STREAMED)
    async def completions(body: Validated[CompletionRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """Continue each prompt, streamed as server-sent events if `stream` is true."""
        model.check(body.model)
        requests = [caller.asks(request) for request in await work(lambda: generation_requests(body))]
        echoes = await _echoes(scheduler, body, caller.tenant)
        public_id, created = requests[0].public_id, int(time.time())
        if not body.stream:
            answer = await whole_answer(scheduler, *requests)
            logprobs = body.logprobs is not None
            return JSONResponse(
                completion_object(public_id, created, model.name, answer, echoes, logprobs=logprobs)
            )
        options = body.stream_options
        include_usage = options is not None and options.include_usage
        encoder = CompletionEncoder(public_id, created, model.name, echoes, include_usage=include_usage)
        return EventStream(scheduler, requests, encoder, keep_alive_seconds)

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
        echo = prompt if isinstance(prompt, str) else await scheduler.detokenize(prompt, "prompt", tenant)
        characters += each * len(echo)
        if characters > MAX_ECHO_CHARACTERS:
            raise InvalidRequest(
                f"echo: with n, the prompts come to more than {MAX_ECHO_CHARACTERS} characters", param="echo"
            )
        echoes.extend([echo] * each)
    return echoes
