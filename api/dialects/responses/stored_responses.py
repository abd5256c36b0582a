"""What is stored, found by the ids that clients send, and the items that an input refers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from api.answers.errors import ApiFailure, refused
from api.bodies.unknown_fields import UnknownFields
from api.dialects.responses.input_items import listed
from api.dialects.responses.items import InputItem, ItemReference, TaggedItem
from api.dialects.responses.store import Kind, ResponseStore, Stored, response_of


@dataclass(frozen=True, slots=True)
class StoredResponses:
    store: ResponseStore

    def _get(self, tenant: str, kind: Kind, stored_id: str) -> Stored | None:
        return self.store.get(tenant, stored_id) if stored_id.startswith(f"{kind}_") else None

    def before(self, tenant: str, response_id: str | None, conversation_id: str | None) -> Stored | None:
        """Return what a new response continues. Raise ApiFailure if it is not there."""
        if conversation_id is not None:
            if response_id is not None:
                raise refused(
                    "Mutually exclusive parameters: send one of 'previous_response_id' and 'conversation'.",
                    "conversation",
                    "mutually_exclusive_parameters",
                )
            return self.conversation(tenant, conversation_id)
        if response_id is None:
            return None
        if (found := self._get(tenant, "resp", response_id)) is not None:
            return found
        message = f"Previous response with id {response_id!r} not found."
        raise refused(message, "previous_response_id", "previous_response_not_found")

    def referred(self, tenant: str, items: Sequence[InputItem], before: Stored | None) -> Referred:
        """Return what resolves references in `items`: a response's items have its id in theirs, all others
        are in `before`. Raise ApiFailure if an item can be in neither."""
        found: dict[str, Stored] = {}
        for item in items:
            if isinstance(item, ItemReference):
                stored = self.store.get(tenant, response_of(item.id)) or before
                if stored is None:
                    raise no_item(item.id)
                found[item.id] = stored
        return Referred(found)

    def found(self, tenant: str, response_id: str) -> Stored:
        """Raise ApiFailure if it is not there."""
        return self._found(tenant, "resp", response_id, "response")

    def conversation(self, tenant: str, conversation_id: str) -> Stored:
        """Raise ApiFailure if it is not there."""
        return self._found(tenant, "conv", conversation_id, "conversation")

    def _found(self, tenant: str, kind: Kind, stored_id: str, what: str) -> Stored:
        if (found := self._get(tenant, kind, stored_id)) is None:
            message = f"{what.capitalize()} with id {stored_id!r} not found."
            raise refused(message, code=f"{what}_not_found", status=404)
        return found


@dataclass(frozen=True)
class Referred:
    """What is stored that has the items to which an input refers, by the items' ids."""

    stored: Mapping[str, Stored]

    @cached_property
    def _items(self) -> dict[str, dict[str, Any]]:
        turns = {id(turn): turn for found in self.stored.values() for turn in found.turns}
        return {item["id"]: item for item in listed(turns.values()) if item["id"] in self.stored}

    def find(self, item_id: str) -> InputItem:
        """Raise ApiFailure if it is not there."""
        return read_items([self._item(item_id)])[0]

    def _item(self, item_id: str) -> dict[str, Any]:
        if (found := self._items.get(item_id)) is None:
            raise no_item(item_id)
        return found

    def resolved(self, items: Sequence[Any]) -> list[Any]:
        """Return `items` of the client's with those that it refers to in their places."""
        by_id = self._items if self.stored else {}
        return [by_id.get(item.get("id"), item) if _refers(item) else item for item in items]


def _refers(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") in (None, "item_reference") and "role" not in item


def read_items(items: Sequence[Any]) -> list[InputItem]:
    """Return what a stored conversation's items say: what is unknown in them was named when they came."""
    with UnknownFields().noting():
        return _items.validate_python(items)


_items: TypeAdapter[list[InputItem]] = TypeAdapter(list[TaggedItem])


def no_item(item_id: str, where: str = ": send the item itself", param: str | None = "input") -> ApiFailure:
    return refused(f"Item with id {item_id!r} not found{where}.", param, "item_not_found", 404)
