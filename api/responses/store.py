"""The responses that clients may come back to: in memory, bounded, the longest unused go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduler.request import Message

_json = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`messages`: the conversation up to and with this answer, without instructions. Messages are shared
    with the responses before it and after it, so they are never changed."""

    body: dict[str, Any]
    messages: tuple[Message, ...]
    conversation_bytes: int
    """Of `messages`, as JSON."""
    charged_bytes: int
    """Counted in full, though a conversation's responses share most of it: a bound that holds whatever
    is thrown away first."""


class ResponseStore:
    """Each tenant sees its own."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self.bytes = 0

    @classmethod
    def by_default(cls) -> ResponseStore:
        return cls(max_responses=1024, max_bytes=256 << 20)

    def __len__(self) -> int:
        return len(self._stored)

    def put(
        self,
        tenant: str,
        body: dict[str, Any],
        before: StoredResponse | None,
        messages: Sequence[Message],
    ) -> None:
        """`before` is the response that this one goes on from, `messages` what came since. One that is
        larger than the whole store is not kept."""
        own = len(_json.encode(messages))
        conversation_bytes = own + (0 if before is None else before.conversation_bytes)
        stored = StoredResponse(
            body,
            (*(() if before is None else before.messages), *messages),
            conversation_bytes,
            conversation_bytes + len(_json.encode(body)),
        )
        if self._max_responses and stored.charged_bytes <= self._max_bytes:
            self.delete(tenant, body["id"])
            self._stored[tenant, body["id"]] = stored
            self.bytes += stored.charged_bytes
            self._evict()

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        key = (tenant, response_id)
        if (found := self._stored.get(key)) is not None:
            self._stored.move_to_end(key)
        return found

    def delete(self, tenant: str, response_id: str) -> bool:
        """Whether it was there. The conversations that went on from it keep what was said."""
        found = self._stored.pop((tenant, response_id), None)
        if found is not None:
            self.bytes -= found.charged_bytes
        return found is not None

    def _evict(self) -> None:
        while len(self._stored) > self._max_responses or self.bytes > self._max_bytes:
            _, oldest = self._stored.popitem(last=False)
            self.bytes -= oldest.charged_bytes
