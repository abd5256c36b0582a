"""The stored responses, found by the ids that clients send, and the items that an input refers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from api.answers.errors import ApiError, ApiFailure
from api.bodies.unknown_fields import UnknownFields
from api.dialects.responses.input_items import listed
from api.dialects.responses.items import InputItem, ItemReference, TaggedItem
from api.dialects.responses.response_ids import ResponseIds
from api.dialects.responses.store import ResponseStore, StoredResponse


@dataclass(frozen=True, slots=True)
class StoredResponses:
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

    def referred(self, tenant: str, items: Sequence[InputItem]) -> Referred:
        """Return what resolves references in `items`. Raise ApiFailure if a response is not there."""
        found: dict[str, StoredResponse] = {}
        for item in items:
            if isinstance(item, ItemReference):
                stored = self.store.get(tenant, self.ids.of_item(item.id))
                if stored is None:
                    raise ApiFailure(_no_item(item.id))
                found[item.id] = stored
        return Referred(found)

    def found(self, tenant: str, response_id: str) -> StoredResponse:
        """Raise ApiFailure if it is not there."""
        if (found := self.store.get(tenant, response_id)) is None:
            message = f"Response with id {response_id!r} not found{self.ids.elsewhere(response_id)}."
            raise ApiFailure(ApiError(404, "invalid_request_error", "response_not_found", message))
        return found


@dataclass(frozen=True)
class Referred:
    """The stored responses that have the items to which an input refers, by the items' ids."""

    responses: Mapping[str, StoredResponse]

    @cached_property
    def _items(self) -> dict[str, dict[str, Any]]:
        turns = {id(turn): turn for found in self.responses.values() for turn in found.turns}
        return {item["id"]: item for item in listed(turns.values()) if item["id"] in self.responses}

    def find(self, item_id: str) -> InputItem:
        """Raise ApiFailure if it is not there."""
        return read_items([self._item(item_id)])[0]

    def _item(self, item_id: str) -> dict[str, Any]:
        if (found := self._items.get(item_id)) is None:
            raise ApiFailure(_no_item(item_id))
        return found

    def resolved(self, items: Sequence[Any]) -> list[Any]:
        """Return `items` of the client's with those that it refers to in their places."""
        by_id = self._items if self.responses else {}
        return [by_id.get(item.get("id"), item) if _refers(item) else item for item in items]


def _refers(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") in (None, "item_reference") and "role" not in item


def read_items(items: Sequence[Any]) -> list[InputItem]:
    """Return what a stored conversation's items say: what is unknown in them was named when they came."""
    with UnknownFields().noting():
        return _items.validate_python(items)


_items: TypeAdapter[list[InputItem]] = TypeAdapter(list[TaggedItem])


def _no_item(item_id: str) -> ApiError:
    message = f"Item with id {item_id!r} not found: send the item itself."
    return ApiError(404, "invalid_request_error", "item_not_found", message, "input")
