"""Admission counts a row with the bytes that a row of the real batch holds."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.kv.cache_layout import row_bytes
from tests.contracts.journal import kv_bytes
from tests.scheduler.engine.mlx.families import FAMILIES
from tests.scheduler.engine.mlx.reuse import engine_of, model_of, words


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("tokens", [5, 40, 300])
def test_a_row_holds_what_is_counted_for_it(family: str, tokens: int) -> None:
    """In every kind of cache, short of a window and beyond it; mlx-lm rounds up to 256 tokens."""
    cache = make_prompt_cache(model := model_of(family))
    model(mx.array([[0]]), cache=cache)
    counted = row_bytes(cache)
    engine = engine_of(family, budget_bytes=0, prefill_chunk_tokens=512, max_slots=1)
    engine.iterate([engine.submit(words(tokens, 7), max_tokens=3)])
    engine.iterate()
    rounding = 256 * (counted.token_bytes + sum(window.token_bytes for window in counted.windows))
    assert counted.held(tokens) <= kv_bytes(engine.backend) <= counted.held(tokens) + rounding
