"""What the next engine may use, after deaths of each cause."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from scheduler.config import EngineConfig, load_message
from scheduler.engine.planning.chunk_ceiling import ChunkCeiling
from scheduler.engine_bounds import LEAST_CEILING_TOKENS, EngineBounds
from scheduler.statistics import DeathCause
from tests.examples import examples

BOUNDED = (DeathCause.OUT_OF_MEMORY, DeathCause.GPU_TIMEOUT)


def test_a_timeout_halves_the_chunk_and_leaves_the_memory() -> None:
    """Down to the smallest, where further timeouts change nothing of it; each climb takes twice as long as
    the one before."""
    bounds, chunks, climbs = EngineBounds(512), [], []
    for _ in range(7):
        assert bounds.smallest_chunk == (bounds.chunk_tokens == LEAST_CEILING_TOKENS)
        bounds = bounds.after(DeathCause.GPU_TIMEOUT)
        chunks.append(bounds.chunk_tokens)
        climbs.append(bounds.climb_chunks)
    assert chunks == [256, 128, 64, 32, 16, 16, 16]
    assert climbs == [128, 256, 512, 1024, 2048, 4096, 8192]
    assert bounds.kv_cache_share == 1


def test_a_timeout_halves_what_the_engine_had_climbed_to() -> None:
    """Not what it was given."""
    bounds = EngineBounds(512).after(DeathCause.GPU_TIMEOUT).climbed(320)
    assert bounds.after(DeathCause.GPU_TIMEOUT).chunk_tokens == 160


def test_lack_of_memory_leaves_the_chunk() -> None:
    """Down to a quarter: below it, another program causes the shortage."""
    bounds, shares = EngineBounds(512), []
    for _ in range(8):
        bounds = bounds.after(DeathCause.OUT_OF_MEMORY)
        shares.append(bounds.kv_cache_share)
    assert bounds == EngineBounds(512, kv_cache_share=0.25)
    assert shares[:2] == pytest.approx([0.8, 0.64])


def test_a_chunk_configured_below_the_smallest_stays() -> None:
    """It is the operator's, and its timeouts count at once."""
    bounds = EngineBounds(8)
    assert bounds.smallest_chunk
    assert bounds.after(DeathCause.GPU_TIMEOUT).chunk_tokens == 8


@settings(deadline=None)
@given(st.sampled_from([cause for cause in DeathCause if cause not in BOUNDED]))
def test_other_deaths_change_nothing(cause: DeathCause) -> None:
    """They would not have been prevented by less."""
    assert EngineBounds(512).after(cause) == EngineBounds(512)


def test_the_load_message_is_the_configuration_within_bounds() -> None:
    """A field of the configuration is one of the message: nothing spells it again."""
    config = EngineConfig("scripted", "none", max_slots=3, kv_disk="prefixes", model="m", fingerprint="f")
    assert asdict(load_message(config)).items() >= asdict(config).items()


@settings(deadline=None, max_examples=examples(200))
@given(length=st.integers(1, 200_000), spare_part=st.floats(1.0, 64.0))
def test_a_prompt_that_small_chunks_get_through_is_read_after_few_deaths(
    length: int, spare_part: float
) -> None:
    """On a device on which a chunk's time grows with its context, and each engine begins anew: the smallest
    chunks are in time up to the prompt's end. A request is spared more deaths than these."""
    assert deaths_until_read(length, most=LEAST_CEILING_TOKENS * length * spare_part) <= 8


def deaths_until_read(length: int, most: float) -> int:
    bounds, deaths = EngineBounds(512), 0
    while not is_read(length, most, ceiling := ceiling_of(bounds)):
        bounds = bounds.climbed(ceiling.tokens).after(DeathCause.GPU_TIMEOUT)
        deaths += 1
        assert deaths < 100, "it never ends"
    return deaths


def ceiling_of(bounds: EngineBounds) -> ChunkCeiling:
    return ChunkCeiling(512, bounds.chunk_tokens, bounds.climb_chunks)


def is_read(length: int, most: float, ceiling: ChunkCeiling) -> bool:
    """Whether one engine reads the whole prompt: tokens times context of no chunk are more than `most`."""
    context = 0
    while context < length:
        tokens = min(ceiling.tokens, length - context)
        if tokens * (context + tokens) > most:
            return False
        ceiling.computed(tokens)
        context += tokens
    return True
