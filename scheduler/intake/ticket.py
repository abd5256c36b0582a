"""What the queue must know of a waiting request to say whose turn it is: frozen, and no more than that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ticket:
    """One waiting request. `uncached_tokens` and `output_tokens` are estimates: what its prefill will
    have to compute, and how long its answer will be. `queued_at` never decreases from push to push."""

    request_id: int
    tenant: str
    session: str
    """Empty where nothing names one: such requests are one session, or each would be a share of its own."""
    priority: int
    prompt_tokens: int
    uncached_tokens: int
    output_tokens: int
    queued_at: float
