"""The stored responses, in memory and bounded, and their items, to which an input refers. The tenant that
holds most loses first, in order of last use."""

from __future__ import annotations

import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import TypeAdapter

from api.answers.errors import ApiFailure, refused
from api.dialects.responses.event_log import EventLog
from api.dialects.responses.items import InputItem, ItemReference, TaggedItem
from scheduler.errors import InvalidRequest
from scheduler.request import Message

_json = msgspec.json.Encoder()
_ID_BYTES = 24
_ITEM = re.compile(rf"[a-z]+_([0-9a-f]{{{2 * _ID_BYTES}}})[0-9]{{4,}}")
"""An item's id, as `Envelope.item_id` makes it."""
_ENTRY_BYTES = 1024
_TEXT_BYTES = 64
"""The interpreter's overhead for a response, and for each of its texts."""


def new_id() -> str:
    return f"resp_{secrets.token_hex(_ID_BYTES)}"


def _response_of(item_id: str) -> str:
    """Return the id of the response that would have the item, or an empty string."""
    return "" if (found := _ITEM.fullmatch(item_id)) is None else f"resp_{found[1]}"


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of a conversation: an input or an answer."""

    messages_json: bytes
    """Its messages for chat templates, as `messages_json` makes them."""
    added_json: bytes = b""
    """The tools that its items add, or nothing."""

    @property
    def texts(self) -> tuple[bytes, ...]:
        return (self.messages_json, self.added_json)


@dataclass(frozen=True, slots=True)
class Stored:
    """A response with the conversation up to it. It is kept as JSON text: as objects, short messages take ten
    times their text, and the store's bound would not bound memory."""

    body_json: bytes
    """The response as its client got it."""
    turns: tuple[Turn, ...]
    """The conversation up to and including its answer, without instructions. What is stored before and after
    shares them."""
    charged_bytes: int
    """Bytes that count towards the store's bound: all of them, although a conversation's responses share
    most, so that the bound holds in any order of eviction."""
    bytes: int = 0
    """Those of the conversation: its JSON text, and what the interpreter takes for it."""
    background: bool = False
    """Whether it was made in the background: its client may not have it yet."""
    events: EventLog | None = None
    """The events of a response that was streamed in the background."""

    def messages(self) -> list[Message]:
        """Return decoded messages; 100 MB take a second."""
        return [message for turn in self.turns for message in msgspec.json.decode(turn.messages_json)]

    def added(self) -> list[list[Any]]:
        """Return the tools that items of each turn add to the conversation."""
        return [msgspec.json.decode(turn.added_json) for turn in self.turns if turn.added_json]


def messages_json(messages: Sequence[Message]) -> bytes:
    """Return a list of messages in the form for a `Turn`. Raise InvalidRequest for a lone
    surrogate, which the text of a call's arguments can contain."""
    try:
        return encoded(messages)
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "input: it contains a lone surrogate, which is not a character", param="input"
        ) from error


def encoded(value: Any) -> bytes:
    """Encode the value, and copy the text: msgspec's own result keeps spare capacity, up to a half of it."""
    return bytes(memoryview(_json.encode(value)))


class ResponseStore:
    """A store with a view for each tenant."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[tuple[str, str], Stored] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        """By tenant."""

    @classmethod
    def by_default(cls, max_bytes: int = 256 << 20) -> ResponseStore:
        return cls(max_responses=1024, max_bytes=max_bytes)

    @property
    def keeps(self) -> bool:
        """Return whether it keeps anything."""
        return self._max_responses > 0 and self._max_bytes > 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(
        self,
        tenant: str,
        response_id: str,
        body_json: bytes,
        before: Stored | None,
        *since: Turn,
        background: bool = False,
        events: EventLog | None = None,
    ) -> None:
        """Store a response, given as its JSON text, in the place of what has its id, unless it is larger than
        the whole store. `before` is what it continues, `since` what came after that."""
        turns = (*(() if before is None else before.turns), *since)
        size = 0 if before is None else before.bytes
        size += sum(len(text) + _TEXT_BYTES for turn in since for text in turn.texts if text)
        charged = _ENTRY_BYTES + size + len(body_json) + _TEXT_BYTES
        charged += 0 if events is None else events.bytes
        stored = Stored(body_json, turns, charged, size, background, events)
        if self.keeps and charged <= self._max_bytes:
            self.delete(tenant, response_id)
            self._stored[tenant, response_id] = stored
            self._charge(tenant, 1, charged)
            self._evict()

    def keep_events(self, tenant: str, response_id: str, events: EventLog | None) -> None:
        """Keep a stored response's events with it, if there are any and they fit."""
        found = None if events is None or events.is_lost else self.get(tenant, response_id)
        if found is not None:
            self.put(tenant, response_id, found.body_json, found, background=True, events=events)

    def get(self, tenant: str, response_id: str) -> Stored | None:
        key = (tenant, response_id)
        if (found := self._stored.get(key)) is not None:
            self._stored.move_to_end(key)
        return found

    def found(self, tenant: str, response_id: str) -> Stored:
        """Raise ApiFailure if it is not there."""
        if (stored := self.get(tenant, response_id)) is None:
            message = f"Response with id {response_id!r} not found."
            raise refused(message, code="response_not_found", status=404)
        return stored

    def continued(self, tenant: str, response_id: str | None) -> Stored | None:
        """Return what a new response continues. Raise ApiFailure if it is not there."""
        if response_id is None:
            return None
        if (stored := self.get(tenant, response_id)) is None:
            message = f"Previous response with id {response_id!r} not found."
            raise refused(message, "previous_response_id", "previous_response_not_found")
        return stored

    def delete(self, tenant: str, response_id: str) -> bool:
        """Return whether it was there. What continued it keeps its messages."""
        found = self._stored.pop((tenant, response_id), None)
        if found is not None:
            self._charge(tenant, -1, -found.charged_bytes)
        return found is not None

    def _charge(self, tenant: str, count: int, charged_bytes: int) -> None:
        self._counts[tenant] += count
        self._bytes[tenant] += charged_bytes
        if not self._counts[tenant]:
            del self._counts[tenant], self._bytes[tenant]

    def _evict(self) -> None:
        while (crowded := len(self._stored) > self._max_responses) or self.bytes > self._max_bytes:
            held = self._counts if crowded else self._bytes
            tenant = max(held, key=held.__getitem__)
            of_tenant = [(key, stored) for key, stored in self._stored.items() if key[0] == tenant]
            # What is stored by default goes before what nobody may have fetched yet.
            (_, response_id), _ = min(of_tenant, key=lambda one: one[1].background)
            self.delete(tenant, response_id)

    @property
    def bytes(self) -> int:
        return self._bytes.total()


class Referred:
    """The stored items to which an input refers, by their ids."""

    def __init__(self, store: ResponseStore, tenant: str, items: Iterable[InputItem]) -> None:
        """Raise ApiFailure if the response of an item is not there."""
        self._bodies: dict[str, bytes] = {}
        """By the id of the response, which each of its items has in its own."""
        self._items: dict[str, dict[str, Any]] | None = None
        for item in items:
            if isinstance(item, ItemReference):
                response_id = _response_of(item.id)
                if (stored := store.get(tenant, response_id)) is None:
                    raise _no_item(item.id)
                self._bodies[response_id] = stored.body_json

    @property
    def bytes(self) -> int:
        return sum(map(len, self._bodies.values()))

    def find(self, item_id: str) -> InputItem:
        """Raise ApiFailure if it is not there."""
        if self._items is None:
            responses = [msgspec.json.decode(body) for body in self._bodies.values()]
            self._items = {item["id"]: item for response in responses for item in response["output"]}
        if (item := self._items.get(item_id)) is None:
            raise _no_item(item_id)
        return _item.validate_python(item)


_item: TypeAdapter[InputItem] = TypeAdapter(TaggedItem)


def _no_item(item_id: str) -> ApiFailure:
    message = f"Item with id {item_id!r} not found: send the item itself."
    return refused(message, "input", "item_not_found", 404)
