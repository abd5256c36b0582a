"""What is shown of one request when an operator opens it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.requests.time_line import Span


@dataclass(frozen=True, slots=True)
class RequestStory:
    """One choice of a request from arrival until now, or to its end. It has no text of prompt or answer."""

    id: str
    choice: int
    tenant: str
    session: str
    priority: int
    state: str
    """A `lifecycle.State` in lower case."""
    outcome: str | None
    """None: it goes on."""
    engine: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    resumed: int
    total_seconds: float
    waits_for: str
    """One of `waits.REASONS`; empty: it runs or has ended."""
    ahead: int | None
    """How many queued requests will be served before it; None: it is not in the queue."""
    spans: tuple[Span, ...]
    """Seconds since its arrival."""
