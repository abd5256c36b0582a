"""What the engine's requests without a slot wait for, as the parent learns it: each change once.

A file of its own because the loop would otherwise be a place where such a note can be forgotten or sent after
its request has retired, which the parent takes for a broken engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.link.messages import WaitOut, WaitReason


class Waits:
    """`now` is the engine's clock. O(waiting) a turn, and nothing a token."""

    def __init__(self) -> None:
        self._told: dict[int, WaitReason] = {}
        """Of those without a slot."""
        self._changes: dict[int, tuple[WaitReason, float]] = {}
        """By request, what is not sent yet, and since when it holds."""

    def __bool__(self) -> bool:
        """Whether there is something to send."""
        return bool(self._changes)

    def look(self, reasons: Mapping[int, WaitReason], now: float) -> None:
        """These are not admitted in this turn, for these reasons. A preempted one keeps its own until it has
        a slot again: what it waits for is that memory is free."""
        for request_id, reason in reasons.items():
            known = self._told.get(request_id)
            if known not in (reason, "preempted"):
                self._waits(request_id, reason, now)

    def preempted(self, request_id: int, now: float) -> None:
        self._waits(request_id, "preempted", now)

    def _waits(self, request_id: int, reason: WaitReason, now: float) -> None:
        self._told[request_id] = reason
        self._changes[request_id] = reason, now

    def admitted(self, request_id: int, now: float) -> None:
        """It has a slot. Nothing is sent of one that did not wait."""
        if self._told.pop(request_id, None) is not None:
            self._changes[request_id] = "nothing", now

    def forget(self, request_id: int) -> None:
        """It retires without a slot."""
        self._told.pop(request_id, None)
        self._changes.pop(request_id, None)

    def take(self, now: float) -> list[WaitOut]:
        """Return the changes, each once."""
        changes, self._changes = self._changes, {}
        return [
            WaitOut(request_id, reason, max(0.0, now - since))
            for request_id, (reason, since) in changes.items()
        ]
