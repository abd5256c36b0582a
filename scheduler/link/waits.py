"""What an engine says of its requests without a slot, with the outputs of its steps (`messages.py`).

A file of its own, as `counters.py` is: it is the part of a step's output that only operators read.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from scheduler.link.wire_struct import WireStruct

WaitReason: TypeAlias = Literal["slot", "prefix", "kv_cache", "memory", "preparation", "preempted", "nothing"]
"""Why a request of the engine has no slot: all are taken, it follows another that computes its prefix, the KV
budget has no room, the memory guard holds admission, its grammar or disk reads are not done, or it was
preempted. "nothing": it has got one."""


class WaitOut(WireStruct, frozen=True):
    """What a request waits for now: sent when that changes, and not of one that gets a slot at once. It
    changed `seconds_ago`, before the step that this is sent with."""

    request_id: int
    waits_for: WaitReason
    seconds_ago: float = 0.0
