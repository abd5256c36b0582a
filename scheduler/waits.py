"""Who waits, and why: by tenant and reason, from the queue to the engines' slots.

Pure. A reason is one word, so that pages and programs can tell them apart; `REASONS` has them all, with what
they say to an operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.statistics import WaitStatistics

REASONS: Mapping[str, str] = {
    "tokenizing": "the prompt is rendered and tokenized, its grammar checked",
    "model": "the model is not loaded, or serves after another one's turn",
    "no_engine": "no engine is ready: they start or restart",
    "quarantine": "every engine with room is cleared of a death first",
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


def reason_of(record: StreamRecord) -> str:
    """Return why a request that has left the queue does not run; empty: it runs, or ends."""
    return record.waits_for or ("step" if record.state is State.SUBMITTED else "")


@dataclass(slots=True)
class _Tally:
    """Requests of one tenant that wait for one reason."""

    requests: int = 0
    oldest: StreamRecord | None = None

    def add(self, record: StreamRecord) -> None:
        self.requests += 1
        if self.oldest is None or record.arrived_at < self.oldest.arrived_at:
            self.oldest = record


def waits_of(
    tokenizing: Mapping[str, int],
    queued: Iterable[StreamRecord],
    queue_waits_for: str,
    held: Iterable[StreamRecord],
    now: float,
) -> tuple[WaitStatistics, ...]:
    """Return a line for each tenant and reason, the one with the most requests first. `tokenizing`: requests
    by tenant. `queue_waits_for`: why the queue's next request is not in an engine. `held`: those that engines
    have. O(requests)."""
    found: dict[tuple[str, str], _Tally] = defaultdict(_Tally)
    for tenant, requests in tokenizing.items():
        found[tenant, "tokenizing"].requests = requests
    for record in queued:
        found[record.prepared.request.tenant, queue_waits_for].add(record)
    for record in held:
        if reason := reason_of(record):
            found[record.prepared.request.tenant, reason].add(record)
    lines = [_line(tenant, reason, tally, now) for (tenant, reason), tally in found.items()]
    return tuple(sorted(lines, key=lambda line: -line.requests))


def _line(tenant: str, reason: str, tally: _Tally, now: float) -> WaitStatistics:
    oldest = tally.oldest
    if oldest is None:
        return WaitStatistics(tenant, reason, tally.requests, None, None)
    request = oldest.prepared.request
    return WaitStatistics(tenant, reason, tally.requests, now - oldest.arrived_at, request.public_id)
