"""What the next engine may use: less after a death for lack of memory, or because the device timed out.

The server keeps it, because it outlives the engines. Pure. The configuration, which makes the first engine's
bounds, must not import `engines`, so this file is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.statistics import DeathCause

_SHARE_STEP = 0.8
_LEAST_SHARE = 0.25
"""With less, requests would wait and be preempted again and again for memory that another program uses."""
LEAST_CEILING_TOKENS = 16
"""A device that cannot compute this many prompt tokens in its time computes no prompt at all."""
_CLIMB_CHUNKS = 64
_MOST_CLIMB_CHUNKS = 16384
"""Bound on `climb_chunks`, counted in chunks of the smallest size: a prompt of 262,144 tokens."""


@dataclass(frozen=True, slots=True)
class EngineBounds:
    """`chunk_tokens`: the ceiling of a step's prompt tokens, from which the engine climbs back by itself
    (`engine/planning/chunk_ceiling.py`), one step after `climb_chunks` chunks of its full size."""

    chunk_tokens: int
    kv_cache_share: float = 1.0
    climb_chunks: int = _CLIMB_CHUNKS

    @property
    def smallest_chunk(self) -> bool:
        """Return whether prefill chunks can get no smaller, so that a timeout is not theirs."""
        return self.chunk_tokens <= LEAST_CEILING_TOKENS

    def climbed(self, chunk_tokens: int) -> EngineBounds:
        """Return the bounds with the ceiling that the running engine reports."""
        return self if chunk_tokens == self.chunk_tokens else replace(self, chunk_tokens=chunk_tokens)

    def after(self, cause: DeathCause) -> EngineBounds:
        """Return the bounds of the engine after one that died of `cause`. Each timeout also doubles how long
        the next climb takes: what timed out once will time out again, at the same contexts."""
        match cause:
            case DeathCause.OUT_OF_MEMORY:
                return replace(self, kv_cache_share=lowered_share(self.kv_cache_share))
            case DeathCause.GPU_TIMEOUT:
                least = min(LEAST_CEILING_TOKENS, self.chunk_tokens)
                return replace(
                    self,
                    chunk_tokens=max(least, self.chunk_tokens // 2),
                    climb_chunks=min(_MOST_CLIMB_CHUNKS, 2 * self.climb_chunks),
                )
            case _:
                return self


def lowered_share(share: float) -> float:
    """Return the share of the KV budget for the next engine, after one ran out of memory with `share`."""
    return max(_LEAST_SHARE, share * _SHARE_STEP)
