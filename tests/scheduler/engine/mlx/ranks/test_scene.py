"""Two ranks compute what one computes, and hold the same."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduler.models.random_qwen3 import TINY, write_model
from tests.scheduler.engine.mlx.ranks.scene import Seen, played

_ROOMY_TOKENS, _TIGHT_TOKENS = 1500, 450
_REQUESTS, _MOST_TOKENS = 12, 28


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Seen]:
    """By number of ranks."""
    folder = tmp_path_factory.mktemp("models") / "two-heads"
    write_model(TINY, folder)
    return {
        ranks: played(folder, ranks, _ROOMY_TOKENS, _TIGHT_TOKENS, _REQUESTS, _MOST_TOKENS)
        for ranks in (1, 2)
    }


def _whole(seen: Seen) -> dict[str, list[int]]:
    """The tokens of the requests that were not cancelled."""
    return {number: seen.tokens[number] for number, how in seen.retired.items() if how != "cancelled"}


def test_tokens_are_those_of_one_rank(seen: dict[int, Seen]) -> None:
    """Greedy, seeded, with penalties, cut-offs, log-probabilities and grammars; among cancels, preemptions
    and evictions, whose moments differ."""
    one, two = seen[1], seen[2]
    assert two.retired == one.retired
    assert Counter(two.retired.values())["stop"] >= 4, "no grammar came to its end"
    assert Counter(two.retired.values())["cancelled"] == 6
    assert _whole(two) == _whole(one)
    assert two.logprobs >= 4 * _MOST_TOKENS


def test_both_ranks_hold_the_same_all_the_time(seen: dict[int, Seen]) -> None:
    """Every 32 steps and at each end hashes of tokens, bytes of prefixes and bytes of rows were equal, after
    all that moves bytes had happened."""
    two = seen[2]
    assert two.agreed >= 6
    assert two.preemptions > 0
    assert two.evicted_tokens > 0
    assert two.hit_tokens > 0
    assert two.freed_bytes > 0


def test_each_of_two_ranks_holds_half_of_a_row(seen: dict[int, Seen]) -> None:
    assert 2 * seen[2].token_bytes == seen[1].token_bytes
