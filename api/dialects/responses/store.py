"""The stored responses and conversations: in memory and bounded. The tenant that holds most loses first, in
order of last use."""

from __future__ import annotations

import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from api.dialects.responses.event_log import EventLog
from scheduler.errors import InvalidRequest
from scheduler.request import Message

_json = msgspec.json.Encoder()
Kind = Literal["resp", "conv"]
"""How the ids of responses and of conversations begin."""
_ID_BYTES = 24
_ITEM = re.compile(rf"[a-z]+_([0-9a-f]{{{2 * _ID_BYTES}}})i?[0-9]{{4,}}")
"""An item's id, as `Envelope.item_id` and `input_items.listed` make it."""
_ENTRY_BYTES = 1024
_TEXT_BYTES = 64
"""The interpreter's overhead for a response, and for each of its texts."""


def new_id(kind: Kind = "resp") -> str:
    return f"{kind}_{secrets.token_hex(_ID_BYTES)}"


def response_of(item_id: str) -> str:
    """Return the id of the response that would have the item, or an empty string."""
    return "" if (found := _ITEM.fullmatch(item_id)) is None else f"resp_{found[1]}"


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of a conversation: an input or an answer."""

    messages_json: bytes
    """Its messages for chat templates, as `messages_json` makes them."""
    items_json: bytes = b"[]"
    """Its items as clients know them: a list, or the response whose output they are."""
    owner: str = ""
    """The id of the response that it is of; of items that a client added one whose end is in theirs."""
    added_json: bytes = b""
    """Those of its items that add tools, or nothing."""

    @property
    def texts(self) -> tuple[bytes, ...]:
        return (self.messages_json, self.items_json, self.added_json)


@dataclass(frozen=True, slots=True)
class Stored:
    """A response with the conversation up to it, or a conversation by itself. It is kept as JSON text: as
    objects, short messages take ten times their text, and the store's bound would not bound memory."""

    body_json: bytes
    """The response, or the conversation's object, as its client got it."""
    turns: tuple[Turn, ...]
    """The conversation, of a response up to and including its answer, without instructions. What is stored
    before and after shares them."""
    charged_bytes: int
    """Bytes that count towards the store's bound: all of them, although a conversation's responses share
    most, so that the bound holds in any order of eviction."""
    bytes: int = 0
    """Those of the conversation: its JSON text, and what the interpreter takes for it."""
    background: bool = False
    is_kept: bool = False
    """Whether a client asked to have it kept: a conversation, or a response in the background."""
    events: EventLog | None = None
    """The events of a response that was streamed in the background."""

    def messages(self) -> list[Message]:
        """Return decoded messages; 100 MB take a second."""
        return [message for turn in self.turns for message in msgspec.json.decode(turn.messages_json)]

    def added(self) -> list[dict[str, Any]]:
        """Return the items that add tools to the conversation."""
        return [
            item for turn in self.turns if turn.added_json for item in msgspec.json.decode(turn.added_json)
        ]


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
        stored_id: str,
        body_json: bytes,
        before: Stored | None,
        *since: Turn,
        background: bool = False,
        events: EventLog | None = None,
    ) -> bool:
        """Store a response or a conversation, given as its JSON text, in the place of what has its id.
        `before` is what it continues, `since` what came after that. Return False, and change nothing, if it
        is larger than the whole store."""
        turns = (*(() if before is None else before.turns), *since)
        size = 0 if before is None else before.bytes
        size += sum(len(text) + _TEXT_BYTES for turn in since for text in turn.texts if text)
        # An answer's turn has the response's own text.
        is_shared = bool(turns) and turns[-1].items_json is body_json
        charged = _ENTRY_BYTES + size + (0 if is_shared else len(body_json) + _TEXT_BYTES)
        charged += 0 if events is None else events.bytes
        kept = background or stored_id.startswith("conv_")
        stored = Stored(body_json, turns, charged, size, background, kept, events)
        fits = self.keeps and charged <= self._max_bytes
        if fits:
            self.delete(tenant, stored_id)
            self._stored[tenant, stored_id] = stored
            self._charge(tenant, 1, charged)
            self._evict()
        return fits

    def keep_events(self, tenant: str, response_id: str, events: EventLog) -> None:
        """Keep a stored response's events with it, if they fit."""
        if (found := self.get(tenant, response_id)) is not None:
            self.put(tenant, response_id, found.body_json, found, background=True, events=events)

    def get(self, tenant: str, stored_id: str) -> Stored | None:
        key = (tenant, stored_id)
        if (found := self._stored.get(key)) is not None:
            self._stored.move_to_end(key)
        return found

    def delete(self, tenant: str, stored_id: str) -> bool:
        """Return whether it was there. What continued it keeps its messages."""
        found = self._stored.pop((tenant, stored_id), None)
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
            # What is stored by default goes before what somebody asked to be kept.
            (_, stored_id), _ = min(of_tenant, key=lambda one: one[1].is_kept)
            self.delete(tenant, stored_id)

    @property
    def bytes(self) -> int:
        return self._bytes.total()
