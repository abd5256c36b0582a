"""`/v1/responses`: create, retrieve, delete and cancel."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from api.access.auth import CallerOf
from api.answers.block_sequence import whole_blocks
from api.answers.errors import ONLY_HTTP, ApiError, ApiFailure
from api.answers.openapi import STREAMED
from api.answers.whole_answer import Block, whole_answer
from api.bodies.json_pieces import SLICE_BYTES, json_text
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.encode import marked
from api.dialects.openai.thinking import budget_field_of
from api.dialects.responses.conversation import input_messages, output_messages
from api.dialects.responses.decode import generation_request
from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.envelope import Echo, Envelope, status_of
from api.dialects.responses.items import InputItem, ItemReference, TaggedItem
from api.dialects.responses.response_ids import ResponseIds
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.stoppable_stream import RunningResponses, StoppableStream
from api.dialects.responses.store import ResponseStore, StoredResponse, messages_json
from api.dialects.thinking_budget import name_unkept_budget
from api.options.model_defaults import Defaults
from api.served_models import ServedModels
from scheduler.request import GenerationRequest

_LOWERED_BY = ("top_logprobs", "max_output_tokens")


def responses_routes(
    models: ServedModels,
    keep_alive_seconds: float,
    store: ResponseStore,
    ids: ResponseIds,
) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)
    running, stored = RunningResponses(), _StoredResponses(store, ids)
    _add_creation(router, models, keep_alive_seconds, stored, running)
    _add_stored(router, stored, running)
    return router


def _add_creation(
    router: APIRouter,
    models: ServedModels,
    keep_alive_seconds: float,
    stored: _StoredResponses,
    running: RunningResponses,
) -> None:
    @router.post("/v1/responses", response_model=None, responses=STREAMED)
    async def create(
        body: Validated[CreateResponse], caller: CallerOf, work: BodyWorkOf, http: Request
    ) -> Response:
        """The next answer of a conversation, streamed as server-sent events where `stream` is true."""
        served = models.check(body.model)
        before = stored.before(caller.tenant, body.previous_response_id)
        if before is not None:
            work = work.also_of(sum(map(len, before.turns_json)))
        referred = stored.referred(caller.tenant, body.input)
        decoded, echo, since = await work.decode(
            body,
            partial(_decoded, before=before, referred=referred, ids=stored.ids, defaults=served.defaults),
        )
        request = caller.asks(decoded, served.adapter)
        request = name_unkept_budget(served.scheduler, request, http.scope, budget_field_of(body))
        envelope = Envelope(request.public_id, int(time.time()), served.name, echo)
        store = stored.store if body.remembers else None
        remember = partial(_remember, store, caller.tenant, request.public_id, before, since)
        if body.stream:
            encoder = ResponseEncoder(envelope, remember)
            return StoppableStream(served.scheduler, request, encoder, keep_alive_seconds, running)
        answer = await whole_answer(served.scheduler, request, lowered_by=_LOWERED_BY)
        (choice,) = answer.choices
        blocks, reason = whole_blocks(choice), choice.end.reason
        items = envelope.items(blocks, reason)
        response = {**envelope.response(status_of(reason), items, answer.usage), **marked(choice.end)}
        answered = work.response(response, repeats=echo.bytes > SLICE_BYTES)
        if not body.remembers:
            return answered
        body_json = await answered.whole()
        remember(body_json, blocks)
        return Response(body_json, media_type="application/json")

    @router.get("/v1/responses", include_in_schema=False)
    async def no_socket(request: Request) -> None:
        """Codex may ask for a WebSocket here first. This status makes it send a POST at once, and no other
        does: after any other it asks again, five times."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            raise ApiFailure(ONLY_HTTP)
        raise HTTPException(405, headers={"allow": "POST"})


def _add_stored(router: APIRouter, stored: _StoredResponses, running: RunningResponses) -> None:
    @router.get("/v1/responses/{response_id}", response_model=None)
    async def retrieve(response_id: str, caller: CallerOf, stream: bool = False) -> Response:
        """A response that is over and was stored."""
        found = stored.found(caller.tenant, response_id)
        if stream:
            raise ApiFailure(_refused("a response is streamed only while it is made", "stream"))
        return Response(found.body_json, media_type="application/json")

    @router.delete("/v1/responses/{response_id}")
    async def delete(response_id: str, caller: CallerOf) -> dict[str, Any]:
        """Delete a response. Conversations that continued it keep its messages."""
        stored.found(caller.tenant, response_id)
        stored.store.delete(caller.tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/v1/responses/{response_id}/cancel", response_model=None)
    async def cancel(response_id: str, caller: CallerOf) -> Response:
        """Cancel a response that is being streamed, and store its output so far."""
        if (stream := running.get(caller.tenant, response_id)) is not None:
            return Response(json_text(await stream.stop()), media_type="application/json")
        stored.found(caller.tenant, response_id)
        raise ApiFailure(_refused("the response is over; there is nothing to cancel", "response_id"))


@dataclass(frozen=True, slots=True)
class _StoredResponses:
    """The stored responses, found by the ids that clients send."""

    store: ResponseStore
    ids: ResponseIds

    def before(self, tenant: str, response_id: str | None) -> StoredResponse | None:
        """Return the response that a new one continues. Raise ApiFailure if it is not there."""
        if response_id is None:
            return None
        if (found := self.store.get(tenant, response_id)) is not None:
            return found
        message = f"Previous response with id {response_id!r} not found{self.ids.elsewhere(response_id)}."
        code, param = "previous_response_not_found", "previous_response_id"
        raise ApiFailure(ApiError(400, "invalid_request_error", code, message, param))

    def referred(self, tenant: str, items: Sequence[InputItem]) -> _Referred:
        """Return what resolves references in `items`. Raise ApiFailure if a response is not there."""
        found: dict[str, StoredResponse] = {}
        for item in items:
            if isinstance(item, ItemReference):
                stored = self.store.get(tenant, self.ids.of_item(item.id))
                if stored is None:
                    raise ApiFailure(_no_item(item.id))
                found[item.id] = stored
        return _Referred(found)

    def found(self, tenant: str, response_id: str) -> StoredResponse:
        """Raise ApiFailure if it is not there."""
        if (found := self.store.get(tenant, response_id)) is None:
            message = f"Response with id {response_id!r} not found{self.ids.elsewhere(response_id)}."
            raise ApiFailure(ApiError(404, "invalid_request_error", "response_not_found", message))
        return found


@dataclass(frozen=True)
class _Referred:
    """The stored responses that have the items to which an input refers, by the items' ids."""

    responses: Mapping[str, StoredResponse]

    @cached_property
    def _items(self) -> dict[str, InputItem]:
        whole = {found.body_json for found in self.responses.values()}
        output = (item for body in whole for item in msgspec.json.decode(body)["output"])
        return {item["id"]: _item.validate_python(item) for item in output}

    def find(self, item_id: str) -> InputItem:
        """Raise ApiFailure if it is not there."""
        if (found := self._items.get(item_id)) is None:
            raise ApiFailure(_no_item(item_id))
        return found


_item: TypeAdapter[InputItem] = TypeAdapter(TaggedItem)


def _no_item(item_id: str) -> ApiError:
    message = f"Item with id {item_id!r} not found: send the item itself."
    return ApiError(404, "invalid_request_error", "item_not_found", message, "input")


def _decoded(
    body: CreateResponse,
    before: StoredResponse | None,
    referred: _Referred,
    ids: ResponseIds,
    defaults: Defaults,
) -> tuple[GenerationRequest, Echo, bytes]:
    """Return the request, what its response repeats, and the input's part of the conversation for the
    store."""
    since = list(input_messages(body.input, referred.find))
    messages = [*(before.messages() if before else ()), *since]
    request = generation_request(body, messages, ids, defaults=defaults)
    return request, Echo.of(body, request.sampling), messages_json(since) if body.remembers else b""


def _remember(
    store: ResponseStore | None,
    tenant: str,
    response_id: str,
    before: StoredResponse | None,
    since: bytes,
    body_json: bytes,
    blocks: list[Block],
) -> None:
    if store is not None:
        store.put(tenant, response_id, body_json, before, since, messages_json(list(output_messages(blocks))))


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, "invalid_request_error", "unsupported_parameter", message, param)
