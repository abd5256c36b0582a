"""A cached prefix equals the result of computing it, whatever happened to the row it was taken from.

Rows of different ages share a batch, and another row takes the place of one that ends: the cached arrays of
the one must not be the other's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache

from scheduler.engine.mlx.packed import unpacked
from scheduler.engine.plan import Keep, StepPlan
from scheduler.shared.messages import Cancel, Submit
from tests.contracts.journal import prefixes_of
from tests.examples import sampled
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words

_SHARED_PREFIX = words(24, 1)


def _submits(engine: ReuseEngine, seed: int, count: int) -> list[Submit]:
    """Prompts and answers of all lengths, half of them behind one shared prefix."""
    chance = random.Random(seed)
    prompts = [
        [*_SHARED_PREFIX[: chance.choice([0, 24])], *words(chance.randrange(4, 36), 100 * seed + at)]
        for at in range(count)
    ]
    return [
        engine.submit(prompt, boundaries=(24,), max_tokens=chance.randrange(2, 18), session=f"agent {at}")
        for at, prompt in enumerate(prompts)
    ]


def _run_staggered(engine: ReuseEngine, submits: list[Submit], seed: int) -> set[int]:
    """They come one after another, and every fifth is cancelled; who was."""
    chance = random.Random(seed)
    cancelled: set[int] = set()
    for submit in submits:
        engine.iterate([submit])
        for _ in range(chance.randrange(5)):
            engine.iterate()
        if chance.random() < 0.2 and engine.heard[submit.request_id].retired is None:
            engine.iterate([Cancel(submit.request_id)])
            cancelled.add(submit.request_id)
    engine.finish()
    return cancelled


def _kept(engine: ReuseEngine) -> Iterator[tuple[list[int], int, list[tuple[mx.array, mx.array]]]]:
    """Yield for each edge the tokens from the root to its end, where it starts, and keys and values of
    its layers."""
    prefixes = prefixes_of(engine.backend)
    for node in prefixes._tree.walk():
        yield (
            list(prefixes._tree.head(node, node.end)),
            node.start,
            [(unpacked(keys), unpacked(values)) for keys, values in node.segment.layers],
        )


def test_what_cannot_be_cut_is_kept_only_right_behind_its_tokens() -> None:
    """The state is that of all that the row has computed: kept for fewer, another row would go on wrongly."""
    engine = engine_of("qwen3_next")
    prefixes = prefixes_of(engine.backend)
    submit = engine.submit(words(20, 1), max_tokens=8)
    engine.iterate([submit])
    while not engine.heard[submit.request_id].tokens:
        engine.iterate()
    before = prefixes.statistics()
    engine.backend.execute(StepPlan(keep=(Keep(submit.request_id, 9),)))
    assert prefixes.statistics() == before
    engine.finish()
    engine.ask(engine.submit(words(20, 1)[:9] + words(9, 2)))


@pytest.mark.parametrize(
    "case",
    sampled(
        product(("deepseek_v3", "gemma3_text", "llama", "qwen3"), (120, 20_000)),
        [("gemma3_text", 120), ("qwen3", 20_000)],
    ),
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def test_what_is_kept_is_what_would_be_computed(case: tuple[str, int]) -> None:
    """Keys and values of every edge, after rows that came, ended, were cancelled or preempted."""
    family, budget_tokens = case
    engine = engine_of(family, budget_tokens=budget_tokens)
    edges = 0
    for seed in (1, 8, 9):  # With the small budget, the rows of most others evict all of it by the end.
        _run_staggered(engine, _submits(engine, seed, 10), seed)
        for tokens, start, layers in _kept(engine):
            fresh = make_prompt_cache(engine.model)
            engine.model(mx.array([tokens]), cache=fresh)
            plain = [layer.keys_and_values() for layer in fresh if type(layer) is KVCache]
            for held, computed in zip(layers, plain, strict=True):
                for half, expected in zip(held, computed, strict=True):
                    assert mx.allclose(half, expected[..., start : len(tokens), :], atol=1e-4), (
                        tokens,
                        start,
                    )
            edges += 1
    assert edges >= 3


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_a_hold_that_has_no_room_is_refused_with_the_answer(family: str) -> None:
    """The answer is the same; nothing is held, and the retired request says why not."""
    token_bytes = engine_of(family).backend.facts.row_bytes.token_bytes + 4
    without, engine = (engine_of(family, budget_bytes=tokens * token_bytes) for tokens in (0, 1000))
    refusals = list[str]()
    for number, server in enumerate((without, *[engine] * 4)):
        (heard,) = server.ask(server.submit(words(150, number), holds=((150, 60.0),)))
        assert heard.retired is not None
        refusals.append(heard.retired.hold_refusal)
    assert "no prefix cache" in refusals[0]
    assert refusals[1] == ""
    assert "may be held" in refusals[-1]
    assert 150 * token_bytes <= prefixes_of(engine.backend).statistics().held_bytes <= 500 * token_bytes
