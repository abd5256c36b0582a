"""What requests wait for: the reasons, from tokenizing to an engine's slots, and how an engine reports those
of its requests to the server.

A reason is one word, so that pages and programs can tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from scheduler.shared.wire_struct import WireStruct

REASONS: Mapping[str, str] = {
    "tokenizing": "the prompt is rendered and tokenized, its grammar checked",
    "model": "the model is not loaded, or serves after another one's turn",
    "no_engine": "no engine is ready: they start or restart",
    "quarantine": "a request with which engines died computes alone on those with room",
    "engines_full": "engines hold as many requests as they may; tenants take turns",
    "step": "the engine has it, and ends its running step first",
    "slot": "every slot is taken",
    "prefix": "another request computes the same prefix",
    "kv_cache": "the KV budget has no room for it",
    "memory": "the memory guard holds admission",
    "preparation": "its grammar is compiled, or its prefix read from disk",
    "preempted": "it lost its slot because KV memory ran out",
    "awaiting_engine": "its engine died; another one resumes it",
}
"""All reasons, with their explanation for an operator."""

WaitReason: TypeAlias = Literal["slot", "prefix", "kv_cache", "memory", "preparation", "preempted", "nothing"]
"""Why a request of the engine has no slot: all are taken, it follows another that computes its prefix, the KV
budget has no room, the memory guard holds admission, its grammar or disk reads are not done, or it was
preempted. "nothing": it has got one."""


class WaitOut(WireStruct, frozen=True):
    """What a request waits for now: sent when that changes, and not about one that gets a slot at once. The
    change was `seconds_ago`, counted from when this is sent."""

    request_id: int
    waits_for: WaitReason
    seconds_ago: float = 0.0


class Waits:
    """What the engine's requests without a slot wait for, as the server learns it: each change once, and none
    of a request that has retired, which the server would take for a broken engine.

    `now` is the engine's clock. O(waiting) an iteration, and nothing a token.
    """

    def __init__(self) -> None:
        self._reported: dict[int, WaitReason] = {}
        """The reported reasons of requests without a slot."""
        self._changes: dict[int, tuple[WaitReason, float]] = {}
        """The changes by request that are not sent yet, with the time of each."""

    def __bool__(self) -> bool:
        """Return whether there is something to send."""
        return bool(self._changes)

    def look(self, reasons: Mapping[int, WaitReason], now: float) -> None:
        """Note why these requests are not admitted in this iteration. A preempted one keeps that reason until
        it has a slot again: it waits for free memory."""
        for request_id, reason in reasons.items():
            known = self._reported.get(request_id)
            if known not in (reason, "preempted"):
                self._waits(request_id, reason, now)

    def preempted(self, request_id: int, now: float) -> None:
        self._waits(request_id, "preempted", now)

    def _waits(self, request_id: int, reason: WaitReason, now: float) -> None:
        self._reported[request_id] = reason
        self._changes[request_id] = reason, now

    def admitted(self, request_id: int, now: float) -> None:
        """Note that a request has a slot. Nothing is sent about one that did not wait."""
        if self._reported.pop(request_id, None) is not None:
            self._changes[request_id] = "nothing", now

    def forget(self, request_id: int) -> None:
        """Forget a request that retires without a slot."""
        self._reported.pop(request_id, None)
        self._changes.pop(request_id, None)

    def take(self, now: float) -> list[WaitOut]:
        """Return the changes, each once."""
        changes, self._changes = self._changes, {}
        return [
            WaitOut(request_id, reason, max(0.0, now - since))
            for request_id, (reason, since) in changes.items()
        ]
