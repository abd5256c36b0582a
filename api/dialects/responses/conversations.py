"""`/v1/conversations`: conversations that responses continue by the same id, and their items."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.answers.errors import ApiFailure, refused
from api.dialects.json_route import BodyWork, BodyWorkOf, Validated
from api.dialects.responses.conversation import input_messages
from api.dialects.responses.input_items import MAX_PAGE, Page, input_turn, list_json, listed
from api.dialects.responses.schema import AddItems, CreateConversation, UpdateConversation
from api.dialects.responses.store import Stored, Turn, encoded, messages_json, new_id
from api.dialects.responses.stored_responses import Referred, StoredResponses, no_item, read_items


def add_conversations(router: APIRouter, stored: StoredResponses) -> None:
    _add_items(router, stored)
    store = stored.store

    @router.post("/v1/conversations")
    async def create_conversation(
        body: Validated[CreateConversation], caller: CallerOf, work: BodyWorkOf
    ) -> dict[str, Any]:
        """A conversation that is kept where responses are, and counts as one. Responses that name it get its
        items before their input, and add their input and output to it."""
        if not store.keeps:
            raise refused("this server stores no conversations")
        made = _object(new_id("conv"), int(time.time()), body.metadata)
        turn = await _turn(body, stored, caller.tenant, work, None)
        _put(stored, caller.tenant, made["id"], encoded(made), None, turn)
        return made

    @router.get("/v1/conversations/{conversation_id}", response_model=None)
    async def retrieve_conversation(conversation_id: str, caller: CallerOf) -> Response:
        """A conversation, without its items."""
        return _json(stored.conversation(caller.tenant, conversation_id).body_json)

    @router.post("/v1/conversations/{conversation_id}")
    async def update_conversation(
        conversation_id: str, body: Validated[UpdateConversation], caller: CallerOf
    ) -> dict[str, Any]:
        """Replace a conversation's metadata."""
        found = stored.conversation(caller.tenant, conversation_id)
        created_at = msgspec.json.decode(found.body_json)["created_at"]
        updated = _object(conversation_id, created_at, body.metadata)
        _put(stored, caller.tenant, conversation_id, encoded(updated), found)
        return updated

    @router.delete("/v1/conversations/{conversation_id}")
    async def delete_conversation(conversation_id: str, caller: CallerOf) -> dict[str, Any]:
        """Delete a conversation. Responses that continued it keep its items."""
        stored.conversation(caller.tenant, conversation_id)
        store.delete(caller.tenant, conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


def _add_items(router: APIRouter, stored: StoredResponses) -> None:
    store = stored.store

    @router.get("/v1/conversations/{conversation_id}/items", response_model=None)
    async def list_items(
        conversation_id: str,
        caller: CallerOf,
        work: BodyWorkOf,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    ) -> Response:
        """A conversation's items, the last first. Data of images and files is not kept."""
        found = stored.conversation(caller.tenant, conversation_id)
        page = Page(order, after, limit)
        return await work.also_of(found.bytes).text(lambda: page.json_of(listed(found.turns)))

    @router.post("/v1/conversations/{conversation_id}/items", response_model=None)
    async def add_items(
        conversation_id: str, body: Validated[AddItems], caller: CallerOf, work: BodyWorkOf
    ) -> Response:
        """Add items to a conversation behind those that are there, and return them."""
        found = stored.conversation(caller.tenant, conversation_id)
        work = work.also_of(found.bytes)
        turn = await _turn(body, stored, caller.tenant, work, found)

        def added() -> bytes:
            seen = {item["id"] for item in listed(found.turns)}
            items = list(listed([turn], seen))
            return Page("asc", limit=len(items)).json_of(items)

        answer = await work(added)
        # As it is now: others may have added to it meanwhile.
        now = stored.conversation(caller.tenant, conversation_id)
        _put(stored, caller.tenant, conversation_id, now.body_json, now, turn)
        return _json(answer)

    @router.get("/v1/conversations/{conversation_id}/items/{item_id}", response_model=None)
    async def retrieve_item(
        conversation_id: str, item_id: str, caller: CallerOf, work: BodyWorkOf
    ) -> Response:
        """One of a conversation's items."""
        found = stored.conversation(caller.tenant, conversation_id)

        def text() -> bytes:
            for item in listed(found.turns):
                if item["id"] == item_id:
                    return encoded(item)
            raise _missing(item_id)

        return await work.also_of(found.bytes).text(text)

    @router.delete("/v1/conversations/{conversation_id}/items/{item_id}", response_model=None)
    async def delete_item(conversation_id: str, item_id: str, caller: CallerOf, work: BodyWorkOf) -> Response:
        """Delete an item, and return its conversation."""
        while True:
            found = stored.conversation(caller.tenant, conversation_id)
            turns = await work.also_of(found.bytes)(partial(_without, found.turns, item_id))
            # If others have changed it meanwhile, what they did stays.
            if store.get(caller.tenant, conversation_id) is found:
                _put(stored, caller.tenant, conversation_id, found.body_json, None, *turns)
                return _json(found.body_json)


async def _turn(
    body: AddItems, stored: StoredResponses, tenant: str, work: BodyWork, before: Stored | None
) -> Turn:
    referred = stored.referred(tenant, body.items, before)
    owner = new_id("conv")

    def made(body: AddItems) -> Turn:
        messages = messages_json(list(input_messages(body.items, referred.find)))
        return input_turn(messages, referred.resolved(body.kept), owner)

    return await work.decode(body, made)


def _without(turns: Iterable[Turn], item_id: str) -> list[Turn]:
    """Return the turns without an item. The others get the ids under which they are listed, which depend on
    those before. Raise ApiFailure if it is not there."""
    seen: set[str] = set()
    left: list[Turn] = []
    for turn in turns:
        items = list(listed([turn], seen))
        rest = [item for item in items if item["id"] != item_id]
        if len(rest) == len(items):
            left.append(replace(turn, items_json=list_json(items)))
        elif rest:
            messages = messages_json(list(input_messages(read_items(rest), Referred({}).find)))
            left.append(input_turn(messages, rest, turn.owner))
    if item_id not in seen:
        raise _missing(item_id)
    return left


def _put(
    stored: StoredResponses,
    tenant: str,
    conversation_id: str,
    body_json: bytes,
    before: Stored | None,
    *since: Turn,
) -> None:
    some = [turn for turn in since if turn.items_json != b"[]"]
    if not stored.store.put(tenant, conversation_id, body_json, before, *some):
        raise refused("the conversation would be larger than what this server stores", "items")


def _object(conversation_id: str, created_at: int, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    kind = {"id": conversation_id, "object": "conversation"}
    return {**kind, "created_at": created_at, "metadata": metadata or {}}


def _json(text: bytes) -> Response:
    return Response(text, media_type="application/json")


def _missing(item_id: str) -> ApiFailure:
    return no_item(item_id, " in the conversation", None)
