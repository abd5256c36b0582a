"""The numbers by which the prefix cache decides what outlives what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retention:
    """Every bound of the policy."""

    continuation_tokens: int = 1000  # exo #1817: a shorter shared prefix is boilerplate.
    continuation_share: float = 0.5  # exo #1817: of the prompt.
    protecting_hits: int = 2  # SGLang's slru threshold.
    protected_seconds: float = 600.0  # A tool call or a person answers within this.
    snapshots_per_path: int = 16  # Recurrent states run to tens of MB each.
    branches_per_session: int = 4  # The conversation, its title, a few sub-agents.
    sessions: int = 4096  # A forgotten session's turns age like any others.

    def continues(self, hit_tokens: int, prompt_tokens: int, system_tokens: int) -> bool:
        """Whether a hit goes on with a conversation and is no branch of it (exo #1817's good hit)."""
        least = max(self.continuation_tokens, system_tokens, self.continuation_share * prompt_tokens)
        return hit_tokens >= least
