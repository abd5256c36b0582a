"""`/v1/responses`: create, count, compact, retrieve, list, delete and cancel; and `/v1/conversations`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.access.identity import Caller
from api.answers.answer_blocks import Block
from api.answers.errors import ONLY_HTTP, ApiFailure, refused
from api.answers.openapi import STREAMED
from api.answers.whole_answer import WholeAnswer, check_size, held_bytes, whole_answer
from api.bodies.body import charge_body
from api.bodies.json_pieces import SLICE_BYTES, json_text
from api.dialects.json_route import BodyWork, BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.encode import marked
from api.dialects.openai.thinking import budget_field_of, name_unkept_budget
from api.dialects.responses import compaction
from api.dialects.responses.conversation import input_messages, output_messages
from api.dialects.responses.conversations import add_conversations
from api.dialects.responses.decode import generation_request
from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.envelope import Echo, Envelope, Status, status_of, usage_object
from api.dialects.responses.event_log import EventLog, LoggedStream
from api.dialects.responses.input_items import MAX_PAGE, Page, input_turn, listed
from api.dialects.responses.items import AddedTools, Result
from api.dialects.responses.running import Hold, RunningResponses, StoppableStream
from api.dialects.responses.schema import CompactRequest, CreateResponse
from api.dialects.responses.store import ResponseStore, Stored, Turn, messages_json
from api.dialects.responses.stored_responses import Referred, StoredResponses, read_items
from api.dialects.responses.tools import Offered
from api.served_models import Served, ServedModels
from scheduler.errors import InvalidRequest
from scheduler.request import PRIORITIES, GenerationRequest, Message

_LOWERED_BY = ("top_logprobs", "max_output_tokens")


def responses_routes(
    models: ServedModels,
    keep_alive_seconds: float,
    store: ResponseStore,
    running: RunningResponses,
) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)
    stored = StoredResponses(store)
    _add_creation(router, models, keep_alive_seconds, stored, running)
    _add_uses(router, models, stored)
    _add_stored(router, keep_alive_seconds, stored, running)
    add_conversations(router, stored)
    return router


@dataclass(frozen=True, slots=True)
class _Asked:
    """A decoded body."""

    requests: list[GenerationRequest]
    """One, until the scheduler has it."""
    public_id: str
    echo: Echo
    before: Stored | None
    """What the response continues in the store."""
    since: Turn
    """What the client sent since then; of a compaction what stays beside it."""
    compacts: bool
    conversation_id: str | None
    is_stored: bool
    """Whether the response itself is."""

    def remember(
        self,
        store: ResponseStore,
        tenant: str,
        background: bool,
        status: Status,
        body_json: bytes,
        blocks: list[Block],
    ) -> None:
        """Store the response if it is wanted, and add its items to its conversation unless it failed. A
        conversation that is deleted meanwhile stays so; one that becomes too large is no more there, rather
        than without a turn."""
        if not self.is_kept:
            return
        owner = self.public_id
        messages: list[Message] = list(output_messages(blocks))
        if self.compacts:
            item = compaction.item_of(owner, blocks)
            messages = list(input_messages(read_items([item]), Referred({}).find))
        answer = Turn(messages_json(messages), body_json, owner)
        name = self.conversation_id
        conversation = None if name is None else store.get(tenant, name)
        if self.is_stored:
            store.put(tenant, owner, body_json, self.before, self.since, answer, background=background)
        if name is None or conversation is None or status == "failed":
            return
        if not store.put(tenant, name, conversation.body_json, conversation, self.since, answer):
            store.delete(tenant, name)

    @property
    def kept_bytes(self) -> int:
        """Return how much the answer keeps of its body, and of what it continues: the store may lose that."""
        before = 0 if self.before is None else self.before.charged_bytes
        return before + self.echo.bytes + sum(map(len, self.since.texts))

    @property
    def is_kept(self) -> bool:
        return self.is_stored or self.conversation_id is not None

    def hold(self, running: RunningResponses, store: ResponseStore, tenant: str) -> Hold:
        if (name := self.conversation_id) is None:
            return nullcontext
        return partial(running.holding, tenant, name, lambda: store.get(tenant, name) is self.before)


async def _asked(
    body: CreateResponse, caller: Caller, work: BodyWork, served: Served, stored: StoredResponses
) -> tuple[_Asked, BodyWork]:
    before = stored.before(caller.tenant, body.previous_response_id, body.conversation_id)
    if before is not None:
        work = work.also_of(before.bytes)
        charge_body(work.request.scope, before.charged_bytes)
    referred = stored.referred(caller.tenant, body.input, before)
    decode = partial(_decoded, before=before, referred=referred, served=served, caller=caller)
    return await work.decode(body, decode), work


def _decoded(
    body: CreateResponse,
    before: Stored | None,
    referred: Referred,
    served: Served,
    caller: Caller,
) -> _Asked:
    since = list(input_messages(body.input, referred.find))
    compacts = body.compacts
    last = [compaction.ASKED] if compacts else []
    messages = [*(before.messages() if before else ()), *since, *last]
    if not messages:
        raise InvalidRequest("input: the conversation is empty: send input", param="input")
    earlier = read_items(before.added() if before else ())
    adding = (item.tools for item in (*earlier, *body.input) if isinstance(item, AddedTools | Result))
    offered = Offered.of(body.tools, adding)
    request = generation_request(body, messages, offered, served.defaults, caller, served.adapter)
    echo = Echo.of(body, request.sampling, offered.called)
    items = referred.resolved(body.kept)
    turn = input_turn(messages_json(since) if body.keeps_items else b"[]", items, request.public_id)
    if not compacts:
        own = (before, turn, compacts, body.conversation_id, body.remembers)
        return _Asked([request], request.public_id, echo, *own)
    kept = list(compaction.compacted(listed((*(before.turns if before else ()), turn))))
    beside = list(input_messages(read_items(kept), referred.find))
    rest = input_turn(messages_json(beside), kept, request.public_id)
    request = compaction.of_summary(request)
    return _Asked([request], request.public_id, echo, None, rest, compacts, None, body.remembers)


def _add_creation(
    router: APIRouter,
    models: ServedModels,
    keep_alive_seconds: float,
    stored: StoredResponses,
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
        asked, work = await _asked(body, caller, work, served, stored)
        name_unkept_budget(served.scheduler, asked.requests, http.scope, budget_field_of(body))
        if in_background and "priority" not in body.model_fields_set:
            asked.requests[0] = replace(asked.requests[0], priority=PRIORITIES[-1])
        envelope = Envelope(asked.public_id, int(time.time()), served.name, asked.echo, in_background)
        remember = partial(asked.remember, stored.store, caller.tenant, in_background)
        hold = asked.hold(running, stored.store, caller.tenant)
        repeats = asked.echo.bytes > SLICE_BYTES
        if body.stream or in_background:
            encode = compaction.CompactionEncoder if asked.compacts else ResponseEncoder
            encoder = encode(envelope, remember)
            logs = in_background and body.stream
            log = EventLog(held=running.logged_bytes, tenant=caller.tenant) if logs else None
            # A log is kept alive for each of its readers.
            seconds = math.inf if in_background else keep_alive_seconds
            stream = StoppableStream(
                served.scheduler, asked.requests, encoder, seconds, running, hold, log, asked.kept_bytes
            )
            if not in_background:
                return stream
            if not stored.store.keeps:
                raise refused("this server stores no responses", "background")
            context = served.scheduler.preparation.context_tokens
            check_size(held := held_bytes(asked.requests[0], context), _LOWERED_BY)
            keep = partial(_keep_events, stored.store, caller.tenant, asked.public_id, log)
            await running.begin(stream, keep, held + asked.kept_bytes)
            if log is not None:
                return LoggedStream(log, keep_alive_seconds)
            return work.response(encoder.so_far(), repeats=repeats)
        with hold():
            answer = await _whole(served, asked, http)
            (choice,) = answer.choices
            blocks, status = choice.sendable_blocks, status_of(choice.end.reason)
            items: Sequence[dict[str, Any]] = (
                [compaction.item_of(asked.public_id, blocks)]
                if asked.compacts
                else envelope.items(blocks, choice.end.reason)
            )
            response = {**envelope.response(status, items, answer.usage), **marked(choice.end)}
            answered = work.response(response, repeats=repeats)
            if not asked.is_kept:
                return answered
            body_json = await answered.whole()
            remember(status, body_json, blocks)
            return Response(body_json, media_type="application/json")

    @router.get("/v1/responses", include_in_schema=False)
    async def no_socket(request: Request) -> None:
        """Codex may ask for a WebSocket here first. This status makes it send a POST at once, and no other
        does: after any other it asks again, five times."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            raise ApiFailure(ONLY_HTTP)
        raise HTTPException(405, headers={"allow": "POST"})


async def _whole(served: Served, asked: _Asked, http: Request) -> WholeAnswer:
    return await whole_answer(
        served.scheduler,
        asked.requests,
        lowered_by=_LOWERED_BY,
        scope=http.scope,
        kept_bytes=asked.kept_bytes,
    )


def _keep_events(store: ResponseStore, tenant: str, response_id: str, log: EventLog | None) -> None:
    if log is not None and not log.is_lost:
        store.keep_events(tenant, response_id, log)


def _add_uses(router: APIRouter, models: ServedModels, stored: StoredResponses) -> None:
    @router.post("/v1/responses/input_tokens")
    async def input_tokens(
        body: Validated[CreateResponse], caller: CallerOf, work: BodyWorkOf
    ) -> dict[str, Any]:
        """Return how many tokens `/v1/responses` would make of the same body: exactly, not an estimate."""
        served = models.check(body.model)
        asked, _ = await _asked(body, caller, work, served, stored)
        tokens = await served.scheduler.tokenize(asked.requests[0].prompt, caller.tenant)
        return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    @router.post("/v1/responses/compact", response_model=None)
    async def compact(
        body: Validated[CompactRequest], caller: CallerOf, work: BodyWorkOf, http: Request
    ) -> Response:
        """A conversation that means the same and is shorter: its user's messages, and a summary by the model.
        Its `output` is the next request's `input`."""
        served = models.check(body.model)
        asked, work = await _asked(body, caller, work, served, stored)
        name_unkept_budget(served.scheduler, asked.requests, http.scope, budget_field_of(body))
        answer = await _whole(served, asked, http)
        item = compaction.item_of(asked.public_id, answer.choices[0].sendable_blocks)

        def text() -> bytes:
            compacted = {
                "id": asked.public_id,
                "object": "response.compaction",
                "created_at": int(time.time()),
                "output": [*listed([asked.since]), item],
                "usage": usage_object(answer.usage),
            }
            return json_text(compacted)

        return Response(await work(text), media_type="application/json")


def _add_stored(
    router: APIRouter, keep_alive_seconds: float, stored: StoredResponses, running: RunningResponses
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
            found = stored.found(caller.tenant, response_id)
        if stream:
            log = found.events if now is None else now.log
            if log is None or log.is_lost:
                why = "only what `background` and `stream` created is streamed, while its events are kept"
                raise refused(why, "stream")
            return LoggedStream(log, keep_alive_seconds, starting_after)
        if now is not None:
            return work.response(now.so_far(), repeats=True)
        return Response(found.body_json, media_type="application/json")

    @router.get("/v1/responses/{response_id}/input_items", response_model=None)
    async def input_items(
        response_id: str,
        caller: CallerOf,
        work: BodyWorkOf,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    ) -> Response:
        """What a stored response answers: the items of its conversation up to it, the last first. Data of
        images and files is not kept."""
        found = stored.found(caller.tenant, response_id)
        page = Page(order, after, limit)
        return await work.also_of(found.bytes).text(lambda: page.json_of(listed(found.turns[:-1])))

    @router.delete("/v1/responses/{response_id}")
    async def delete(response_id: str, caller: CallerOf) -> dict[str, Any]:
        """Delete a response; one that is being made is cancelled. Conversations that continued it keep its
        messages."""
        if (stream := running.get(caller.tenant, response_id)) is not None:
            await stream.stop()
        else:
            stored.found(caller.tenant, response_id)
        stored.store.delete(caller.tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/v1/responses/{response_id}/cancel", response_model=None)
    async def cancel(response_id: str, caller: CallerOf, work: BodyWorkOf) -> Response:
        """Cancel a response that is being made, and store its output so far. One that was made in the
        background and is over stays as it is."""
        if (stream := running.get(caller.tenant, response_id)) is not None:
            return work.response(await stream.stop(), repeats=True)
        found = stored.found(caller.tenant, response_id)
        if found.background:
            return Response(found.body_json, media_type="application/json")
        raise refused("the response is over; there is nothing to cancel", "response_id")
