"""The ceiling of a step's prefill after a device timeout: how it binds, and how it climbs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.budget.policy import Allowance
from scheduler.engine.plan import plan
from scheduler.engine.planning.chunk_ceiling import ChunkCeiling
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS, PrefillLimits, padded_tokens
from scheduler.engine.sequence import EngineSequence
from tests.contracts.journal import prompt_of, request
from tests.scheduler.engine.test_plan import state_of

WHOLE = 512
LIMITS = PrefillLimits(rows=8, chunk_tokens=WHOLE)


def test_it_climbs_by_a_quarter_after_its_chunks_and_counts_anew() -> None:
    """Up to the whole, where it stays."""
    ceiling = ChunkCeiling(WHOLE, 256, climb_chunks=3)
    seen = []
    for _ in range(12):
        ceiling.computed(ceiling.tokens)
        seen.append(ceiling.tokens)
    assert seen == [256, 256, 320, 320, 320, 400, 400, 400, 500, 500, 500, 512]
    for _ in range(12):
        ceiling.computed(WHOLE)
    assert ceiling.tokens == WHOLE


def test_only_chunks_of_its_full_size_count() -> None:
    """The end of a prompt, or a chunk that the inter-token latency keeps small, does not show that larger
    ones are safe. Rows of equal chunks leave a few tokens of the ceiling, and do count."""
    ceiling = ChunkCeiling(WHOLE, 64, climb_chunks=1)
    for tokens in (0, 1, 32, 55):
        ceiling.computed(tokens)
    assert ceiling.tokens == 64
    ceiling.computed(3 * (64 // 3))
    assert ceiling.tokens == 80


@settings(deadline=None)
@given(
    tokens=st.integers(16, WHOLE),
    memory=st.none() | st.integers(8, WHOLE),
    lengths=st.lists(st.integers(2, 900), min_size=1, max_size=8),
)
def test_a_step_stays_below_both_ceilings(tokens: int, memory: int | None, lengths: list[int]) -> None:
    """The device's and the memory guard's, padding included."""
    ceiling = ChunkCeiling(WHOLE, tokens)
    waiting = [EngineSequence.of(request(at, prompt_of(length, at))) for at, length in enumerate(lengths)]
    state = state_of(waiting, pace=PrefillPace(WHOLE), limits=ceiling.limits(LIMITS))
    bounded = replace(state, chunk_ceiling=ceiling.tokens, allowance=Allowance(chunk_tokens=memory))
    todo = plan(bounded, 0.0)
    lowest = min(tokens, WHOLE if memory is None else memory)
    # Beside others each row has LEAST_CHUNK_TOKENS, whatever the memory guard leaves.
    assert padded_tokens(todo.chunks) <= max(lowest, LEAST_CHUNK_TOKENS * len(todo.chunks))
    assert padded_tokens(todo.chunks) <= tokens
