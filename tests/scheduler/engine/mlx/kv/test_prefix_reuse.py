"""A prefix hit changes no token: of any length, in every family of caches.

The oracle is mlx-lm's own loop for one request, without any cache of ours.
"""

from __future__ import annotations

import pytest

from scheduler.shared.messages import Cancel, Inspect
from tests.contracts.journal import prefixes_of
from tests.examples import sampled
from tests.scheduler.engine.mlx.families import FAMILIES, ONE_OF_EACH_KIND
from tests.scheduler.engine.mlx.reuse import engine_of, words

_SHARED_PREFIX = words(37, 1)
"""More than two windows and four chunks, and no whole number of either."""

_ALL = sampled(sorted(FAMILIES), ONE_OF_EACH_KIND)
_PLAIN = ["deepseek_v3", "llama", "qwen3"]


@pytest.mark.parametrize("family", _ALL)
def test_cold_repeat_partial_branch_and_next_turn(family: str) -> None:
    """One prompt cold and again, another behind the same beginning, one that leaves in the middle, and the
    next turn of the first: each has its own tokens, and computes no more than what is not kept."""
    engine = engine_of(family)
    edges: tuple[int, ...] = (37,)
    first = engine.submit([*_SHARED_PREFIX, *words(12, 2)], boundaries=(*edges, 46))
    (cold,) = engine.ask(first)
    assert cold.cached == 0
    (again,) = engine.ask(engine.submit(first.prompt.tolist(), boundaries=(*edges, 46)))
    assert again.cached >= 46
    (partial,) = engine.ask(engine.submit([*_SHARED_PREFIX, *words(9, 3)], boundaries=edges))
    assert partial.cached >= 37
    (branch,) = engine.ask(engine.submit([*_SHARED_PREFIX[:20], *words(13, 4)], boundaries=(20,)))
    assert branch.cached == (20 if family in _PLAIN else 0)
    turn = [*first.prompt, *cold.tokens, *words(9, 5)]
    (followed,) = engine.ask(engine.submit(turn, boundaries=edges))
    # Except the answer's last token, which is computed when a request continues it.
    assert followed.cached >= len(first.prompt) + len(cold.tokens) - 1
    if family in _PLAIN:
        assert again.cached == 48


@pytest.mark.parametrize("family", _ALL)
def test_a_burst_computes_its_prefix_once(family: str) -> None:
    """Six requests together behind one new prefix: one computes it, and every one has its own tokens."""
    engine = engine_of(family)
    submits = [engine.submit([*_SHARED_PREFIX, *words(5 + n, 10 + n)], boundaries=(37,)) for n in range(6)]
    engine.ask(*submits)
    own = sum(len(submit.prompt) - 37 for submit in submits)
    assert engine.prefilled_tokens <= 37 + own + 6


@pytest.mark.parametrize("family", _ALL)
def test_after_eviction_it_is_cold_and_right(family: str) -> None:
    """What was evicted is computed again; what is left of a path still serves."""
    engine = engine_of(family)
    prompts = [[*_SHARED_PREFIX, *words(12, 40 + n)] for n in range(3)]
    engine.ask(*(engine.submit(prompt, boundaries=(37,)) for prompt in prompts))
    prefixes = prefixes_of(engine.backend)
    prefixes.budget_bytes = prefixes.nbytes // 2
    for prompt in prompts:
        engine.ask(engine.submit(prompt, boundaries=(37,)))
    engine.iterate([Inspect(1, clear=True)])
    assert engine.inspections[0].cache is not None
    assert engine.inspections[0].cache.nodes == 0
    assert prefixes.nbytes == 0
    (cold,) = engine.ask(engine.submit(prompts[0], boundaries=(37,)))
    assert cold.cached == 0


@pytest.mark.parametrize("family", _ALL)
@pytest.mark.parametrize("turns", [10])
def test_a_cancelled_request_is_resumed(family: str, turns: int) -> None:
    """Cancelled in prefill or decode, the same request again goes on from what was whole."""
    engine = engine_of(family)
    prompt = [*_SHARED_PREFIX, *words(13, 50)]
    gone = engine.submit(prompt, max_tokens=50, boundaries=(47,))
    engine.iterate([gone])
    for _ in range(turns):
        engine.iterate()
    done = engine.heard[gone.request_id].prefilled
    engine.iterate([Cancel(gone.request_id)])
    assert engine.loop.idle
    (again,) = engine.ask(engine.submit(prompt))
    assert again.cached == min(done, 49)
    assert done > 30


@pytest.mark.parametrize("family", sampled(["gemma3_text", "qwen3_next"], ["gemma3_text"]))
def test_chats_of_2k_tokens_reuse_what_their_turns_share(family: str) -> None:
    """Five turns of an agent, on models whose layers cannot be cut: at least nine tenths of what each turn
    has in common with the one before it is not computed again."""
    engine = engine_of(family, prefill_chunk_tokens=256)
    prompt, boundaries = words(700, 1), [700]
    shared = cached = before = 0
    for turn in range(5):
        prompt = prompt + words(260, 50 + turn)
        here = (*boundaries, len(prompt) - 3)
        (heard,) = engine.ask(engine.submit(prompt, boundaries=here, session="agent", system_tokens=700))
        if turn:
            shared, cached = shared + before, cached + heard.cached
        prompt = prompt + heard.tokens
        before = len(prompt)
        boundaries.append(before)
    assert before > 2000
    assert cached >= 0.9 * shared
