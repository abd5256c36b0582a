"""The bounds of the prefix cache, and the eviction policy's facts about each node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

SessionKey: TypeAlias = tuple[str, str]  # salt, session


@dataclass(frozen=True, slots=True)
class Retention:
    """The bounds of the eviction policy."""

    continuation_tokens: int = 1000  # exo #1817: a shorter shared prefix is boilerplate.
    continuation_share: float = 0.5  # exo #1817: of the prompt.
    protecting_hits: int = 2  # SGLang's slru threshold.
    held_share: float = 0.5  # At most half of the KV budget is held.
    snapshots_per_path: int = 16  # Recurrent states run to tens of MB each.
    branches_per_session: int = 4  # The conversation, its title, a few sub-agents.
    sessions: int = 4096  # The turns of a forgotten session age like any others.

    def continues(self, hit_tokens: int, prompt_tokens: int, system_tokens: int) -> bool:
        """Return whether a hit continues a conversation rather than branching from it (exo #1817's good
        hit)."""
        least = max(self.continuation_tokens, system_tokens, self.continuation_share * prompt_tokens)
        return hit_tokens >= least


@dataclass(frozen=True, slots=True)
class BufferBound:
    """How many device allocations the cache may hold, whatever their size, and what its parts are made of.
    Metal ends a process that exceeds its number."""

    most: int
    of_segment: int
    of_snapshot: int

    def exceeded(self, segments: int, snapshots: int) -> bool:
        return segments * self.of_segment + snapshots * self.of_snapshot > self.most


@dataclass(slots=True)
class Mark:
    """The policy's facts about a node."""

    last_used: float
    hits: int = 0
    protected: bool = False
    superseded: bool = False
    snapshot_used: float = 0.0
    snapshot_hits: int = 0
    turns: set[SessionKey] = field(default_factory=set)  # Sessions whose newest turns end here.
    ticket: int = 0  # The one valid entry in the queue.
    owner: SessionKey | None = None  # The first session that used it.
    shared: bool = False  # Another one, or a request without a session, has used it since.
    continued: bool = False  # It continues something that was continued before.
    extended: bool = False  # Something has been cached below it.
    gap_seconds: float = 0.0  # From a use to the next hit, a moving mean.
    held_until: float = 0.0
    held_bytes: int = 0  # Of the bound on what is held.

    def hit_by(self, key: SessionKey | None, now: float, protecting: bool, protecting_hits: int) -> None:
        """Take note that a request begins with what ends here: one of this session, or of none."""
        self._used_by(key, hit=True)
        self.hits += 1
        self.gap_seconds += (now - self.last_used - self.gap_seconds) / min(self.hits, 4)
        self.protected |= protecting or self.hits >= protecting_hits
        self.last_used, self.superseded = now, False

    def passed_by(self, key: SessionKey | None, now: float, forks: bool) -> None:
        """Take note that something was cached here or below: a whole turn, if there is a session."""
        self._used_by(key, hit=False)
        if forks and not self.protected:
            self.protected = True
            self.gap_seconds = self.gap_seconds or now - self.last_used
        self.last_used, self.superseded = now, False

    def _used_by(self, key: SessionKey | None, hit: bool) -> None:
        if key is None:  # Mid-turn insertions also pass None.
            self.shared |= hit and self.owner is not None
        elif self.owner is None and not self.hits:
            self.owner = key
        else:
            self.shared |= self.owner != key
