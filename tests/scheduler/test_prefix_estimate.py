"""The estimate of prefix hits in the server."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import prefix_estimate
from scheduler.prefix_estimate import BLOCK_TOKENS, PrefixEstimate, block_hashes
from scheduler.shared.token_ids import compact


def estimate_of(*prompts: list[int], salt: str = "") -> PrefixEstimate:
    estimate = PrefixEstimate()
    for prompt in prompts:
        estimate.computed(block_hashes(compact(prompt), salt))
    return estimate


def cached(estimate: PrefixEstimate, prompt: list[int], salt: str = "") -> int:
    return estimate.cached_tokens(block_hashes(compact(prompt), salt), len(prompt))


@settings(deadline=None)
@given(shared=st.integers(0, 2000), one=st.integers(0, 1000), other=st.integers(1, 1000))
def test_it_is_the_shared_beginning_in_whole_blocks(shared: int, one: int, other: int) -> None:
    """The beginning is of a prompt that was computed, and never all of the new one: at least one token is
    left to compute."""
    beginning = list(range(shared))
    estimate = estimate_of([*beginning, *[70_000] * one])
    prompt = [*beginning, *[80_000] * other]
    assert cached(estimate, prompt) == min(shared // BLOCK_TOKENS * BLOCK_TOKENS, len(prompt) - 1)


def test_a_block_counts_only_after_all_that_stands_before_it() -> None:
    """The same tokens after another beginning have other keys and values."""
    block = list(range(BLOCK_TOKENS))
    assert cached(estimate_of([*block, *block]), [*reversed(block), *block]) == 0


def test_the_longest_unused_is_forgotten_first_and_its_end_before_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bounded, and the part of a prompt that others share goes last."""
    monkeypatch.setattr(prefix_estimate, "MOST_BLOCKS", 6)
    old, new = list(range(4 * BLOCK_TOKENS)), list(range(10_000, 10_000 + 4 * BLOCK_TOKENS))
    estimate = estimate_of(old, new)
    assert len(estimate) == 6
    assert cached(estimate, [*new, 1]) == 4 * BLOCK_TOKENS
    assert cached(estimate, [*old, 1]) == 2 * BLOCK_TOKENS


def test_no_more_is_expected_than_the_engine_says_it_holds() -> None:
    """It has evicted what was used longest ago; this process is not told what."""
    old, new = list(range(4 * BLOCK_TOKENS)), list(range(10_000, 10_000 + 4 * BLOCK_TOKENS))
    estimate = estimate_of(old, new)
    estimate.bound(5 * BLOCK_TOKENS + 1)
    assert cached(estimate, [*new, 1]) == 4 * BLOCK_TOKENS
    assert cached(estimate, [*old, 1]) == BLOCK_TOKENS


def test_what_was_cancelled_before_it_was_computed_is_not_expected() -> None:
    """Only whole blocks that were computed stay."""
    prompt = list(range(4 * BLOCK_TOKENS))
    estimate = estimate_of(prompt)
    estimate.forget(block_hashes(compact(prompt), ""), 2 * BLOCK_TOKENS - 1)
    assert cached(estimate, [*prompt, 1]) == BLOCK_TOKENS
    estimate.clear()
    assert cached(estimate, [*prompt, 1]) == 0
