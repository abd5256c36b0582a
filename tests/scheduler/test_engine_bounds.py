"""What the next engine may use, after deaths of each cause."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import EngineConfig
from scheduler.engine_bounds import LEAST_CHUNK_TOKENS, EngineBounds
from scheduler.statistics import DeathCause

BOUNDED = (DeathCause.OUT_OF_MEMORY, DeathCause.GPU_TIMEOUT)


def test_a_timeout_halves_the_chunk_and_leaves_the_memory() -> None:
    """Down to the smallest, where further timeouts change nothing of it; each climb takes twice as long as
    the one before."""
    bounds, chunks, climbs = EngineBounds(512), [], []
    for _ in range(7):
        assert bounds.smallest_chunk == (bounds.chunk_tokens == LEAST_CHUNK_TOKENS)
        bounds = bounds.after(DeathCause.GPU_TIMEOUT)
        chunks.append(bounds.chunk_tokens)
        climbs.append(bounds.climb_chunks)
    assert chunks == [256, 128, 64, 32, 16, 16, 16]
    assert climbs == [64, 128, 256, 512, 1024, 1024, 1024]
    assert bounds.kv_cache_share == 1


def test_a_timeout_halves_what_the_engine_had_climbed_to() -> None:
    """Not what it was given."""
    bounds = EngineBounds(512).after(DeathCause.GPU_TIMEOUT).climbed(320)
    assert bounds.after(DeathCause.GPU_TIMEOUT).chunk_tokens == 160


def test_lack_of_memory_leaves_the_chunk() -> None:
    assert EngineBounds(512).after(DeathCause.OUT_OF_MEMORY) == EngineBounds(512, kv_cache_share=0.8)


def test_a_chunk_configured_below_the_smallest_stays() -> None:
    """It is the operator's, and its timeouts count at once."""
    bounds = EngineBounds(8)
    assert bounds.smallest_chunk
    assert bounds.after(DeathCause.GPU_TIMEOUT).chunk_tokens == 8


@settings(deadline=None, derandomize=True)
@given(st.sampled_from([cause for cause in DeathCause if cause not in BOUNDED]))
def test_other_deaths_change_nothing(cause: DeathCause) -> None:
    """They would not have been prevented by less."""
    assert EngineBounds(512).after(cause) == EngineBounds(512)


def test_the_load_message_carries_the_bounds() -> None:
    """And the configured chunk beside its ceiling, for the climb back."""
    config = EngineConfig("scripted", Path("none"), prefill_chunk_tokens=512)
    load = config.load_message(EngineBounds(64, 0.8, 256))
    assert (load.prefill_chunk_tokens, load.chunk_ceiling, load.climb_chunks) == (512, 64, 256)
    assert load.kv_cache_share == 0.8
    assert config.load_message().chunk_ceiling == 512
