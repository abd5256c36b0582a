"""`/v1/responses`: create, count, retrieve, delete and cancel."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.access.identity import Caller
from api.answers.errors import ONLY_HTTP, ApiFailure, refused
from api.answers.openapi import STREAMED
from api.answers.whole_answer import check_size, held_bytes, whole_answer
from api.bodies.body import charge_body
from api.bodies.json_pieces import SLICE_BYTES
from api.dialects.json_route import BodyWork, BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.encode import marked
from api.dialects.openai.thinking import name_unkept_budget
from api.dialects.responses.decode import Asked, decoded
from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.envelope import status_of
from api.dialects.responses.event_log import EventLog, LoggedStream
from api.dialects.responses.running import RunningResponses, StoppableStream
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.store import Referred, ResponseStore
from api.served_models import Served, ServedModels

_LOWERED_BY = ("top_logprobs", "max_output_tokens")


def responses_routes(
    models: ServedModels,
    keep_alive_seconds: float,
    store: ResponseStore,
    running: RunningResponses,
) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)
    _add_creation(router, models, keep_alive_seconds, store, running)
    _add_stored(router, keep_alive_seconds, store, running)
    return router


async def _asked(
    body: CreateResponse, caller: Caller, work: BodyWork, served: Served, store: ResponseStore
) -> tuple[Asked, BodyWork]:
    before = store.continued(caller.tenant, body.previous_response_id)
    referred = Referred(store, caller.tenant, body.input)
    charge_body(work.request.scope, referred.bytes + (0 if before is None else before.charged_bytes))
    work = work.also_of(referred.bytes + (0 if before is None else before.bytes))
    model, defaults, adapter = served.name, served.defaults, served.adapter
    return await work.decode(
        body, lambda body: decoded(body, before, referred, model, defaults, caller, adapter)
    ), work


def _add_creation(
    router: APIRouter,
    models: ServedModels,
    keep_alive_seconds: float,
    store: ResponseStore,
    running: RunningResponses,
) -> None:
    @router.post("/v1/responses", response_model=None, responses=STREAMED)
    async def create(
        body: Validated[CreateResponse], caller: CallerOf, work: BodyWorkOf, http: Request
    ) -> Response:
        """The next answer of a conversation, streamed as server-sent events where `stream` is true. With
        `background` it goes on without its client, who asks for it by its id."""
        served = models.check(body.model)
        in_background = body.background is True
        asked, work = await _asked(body, caller, work, served, store)
        name_unkept_budget(served.scheduler, asked.requests, http.scope, body)
        envelope = asked.envelope
        remember = partial(asked.remember, store, caller.tenant)
        repeats = envelope.bytes > SLICE_BYTES
        if body.stream or in_background:
            encoder = ResponseEncoder(envelope, remember)
            logs = in_background and body.stream
            log = EventLog(held=running.logged_bytes, tenant=caller.tenant) if logs else None
            # A log is kept alive for each of its readers.
            seconds = math.inf if in_background else keep_alive_seconds
            stream = StoppableStream(
                served.scheduler, asked.requests, encoder, seconds, running, log, asked.kept_bytes
            )
            if not in_background:
                return stream
            if not store.keeps:
                raise refused("this server stores no responses", "background")
            context = served.scheduler.preparation.context_tokens
            check_size(held := held_bytes(asked.requests[0], context), _LOWERED_BY)
            keep = partial(store.keep_events, caller.tenant, envelope.public_id, log)
            await running.begin(stream, keep, held + asked.kept_bytes)
            if log is not None:
                return LoggedStream(log, keep_alive_seconds)
            return work.response(encoder.so_far(), repeats=repeats)
        answer = await whole_answer(
            served.scheduler,
            asked.requests,
            lowered_by=_LOWERED_BY,
            scope=http.scope,
            kept_bytes=asked.kept_bytes,
        )
        (choice,) = answer.choices
        blocks, status = choice.sendable_blocks, status_of(choice.end.reason)
        items = envelope.items(blocks, choice.end.reason)
        response = {**envelope.response(status, items, answer.usage), **marked(choice.end)}
        answered = work.response(response, repeats=repeats)
        if not asked.is_kept:
            return answered
        body_json = await answered.whole()
        remember(status, body_json, blocks)
        return Response(body_json, media_type="application/json")

    @router.post("/v1/responses/input_tokens")
    async def input_tokens(
        body: Validated[CreateResponse], caller: CallerOf, work: BodyWorkOf
    ) -> dict[str, Any]:
        """Return how many tokens `/v1/responses` would make of the same body: exactly, not an estimate."""
        served = models.check(body.model)
        asked, _ = await _asked(body, caller, work, served, store)
        tokens = await served.scheduler.tokenize(asked.requests[0].prompt, caller.tenant)
        return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    @router.get("/v1/responses", include_in_schema=False)
    async def no_socket(request: Request) -> None:
        """Codex may ask for a WebSocket here first. This status makes it send a POST at once, and no other
        does: after any other it asks again, five times."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            raise ApiFailure(ONLY_HTTP)
        raise HTTPException(405, headers={"allow": "POST"})


def _add_stored(
    router: APIRouter, keep_alive_seconds: float, store: ResponseStore, running: RunningResponses
) -> None:
    @router.get("/v1/responses/{response_id}", response_model=None, responses=STREAMED)
    async def retrieve(
        response_id: str,
        caller: CallerOf,
        work: BodyWorkOf,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1)] = -1,
    ) -> Response:
        """A stored response, or the output so far of one that is made in the background. With `stream` the
        events, behind the one with the number `starting_after`, of one that was created with `background`
        and `stream`."""
        now = running.get(caller.tenant, response_id)
        if now is None:
            stored = store.found(caller.tenant, response_id)
        if stream:
            log = stored.events if now is None else now.log
            if log is None or log.is_lost:
                why = "only what `background` and `stream` created is streamed, while its events are kept"
                raise refused(why, "stream")
            return LoggedStream(log, keep_alive_seconds, starting_after)
        if now is not None:
            return work.response(now.so_far(), repeats=True)
        return Response(stored.body_json, media_type="application/json")

    @router.delete("/v1/responses/{response_id}")
    async def delete(response_id: str, caller: CallerOf) -> dict[str, Any]:
        """Delete a response; one that is being made is cancelled. Conversations that continued it keep its
        messages."""
        if (stream := running.get(caller.tenant, response_id)) is not None:
            await stream.stop()
        else:
            store.found(caller.tenant, response_id)
        store.delete(caller.tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/v1/responses/{response_id}/cancel", response_model=None)
    async def cancel(response_id: str, caller: CallerOf, work: BodyWorkOf) -> Response:
        """Cancel a response that is being made, and store its output so far. One that was made in the
        background and is over stays as it is."""
        if (stream := running.get(caller.tenant, response_id)) is not None:
            return work.response(await stream.stop(), repeats=True)
        stored = store.found(caller.tenant, response_id)
        if stored.background:
            return Response(stored.body_json, media_type="application/json")
        raise refused("the response is over; there is nothing to cancel", "response_id")
