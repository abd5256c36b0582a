"""Bytes bound admission as slots do: they are never exceeded, every request finishes, and the answers are the
same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.plan import PATIENCE_SECONDS, StepPlan, plan
from scheduler.engine.planning import memory as engine_memory
from scheduler.engine.planning.memory import (
    GROWTH_TOKENS,
    MOST_PREEMPTIONS,
    Memory,
    charged_bytes,
)
from scheduler.engine.planning.row_sharing import hit_in_place
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import ScriptedPlan
from scheduler.shared.row_bytes import RowBytes
from tests.contracts.journal import alone, kv_bytes, prefixes_of, prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.heard import HeardLoop
from tests.scheduler.engine.prefix.integrity import check_integrity
from tests.scheduler.engine.test_plan import state_of

_ONE = RowBytes(token_bytes=1)


def _memory(budget_bytes: int, row_bytes: RowBytes = _ONE, pinned_bytes: int = 0) -> Memory:
    return Memory(budget_bytes, row_bytes, budget_bytes, lambda: pinned_bytes)


def _plan(
    waiting: list[EngineSequence], running: list[EngineSequence], memory: Memory, free: int, now: float
) -> StepPlan:
    return plan(state_of(waiting, running, free, "never", memory=memory), now)


def _admitted(todo: StepPlan) -> list[EngineSequence]:
    return [admit.sequence for admit in todo.admit]


_HEALTHY = ScriptedPlan(prefill_tokens_per_step=64)


class _Farm(HeardLoop):
    """With few bytes."""

    def __init__(self, budget_tokens: int, slots: int = 8) -> None:
        self.budget_bytes = budget_tokens * (KV_BYTES_PER_TOKEN + 4)
        self.backend = ScriptedBackend(_HEALTHY, kv_cache_bytes=self.budget_bytes)
        super().__init__(self.backend, slots)

    @property
    def held_bytes(self) -> int:
        return kv_bytes(self.backend) + prefixes_of(self.backend).nbytes

    @property
    def can_preempt(self) -> bool:
        rows = list(self.loop._slots)
        return len(rows) > 1 and any(row.preemptions < MOST_PREEMPTIONS for row in rows)


@settings(deadline=None, max_examples=examples(30))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 130), st.integers(1, 160)), min_size=1, max_size=16),
    budget_tokens=st.integers(140, 800),
    seed=st.integers(0, 999),
)
def test_everybody_finishes_within_the_bytes(
    sizes: list[tuple[int, int]], budget_tokens: int, seed: int
) -> None:
    """Any prompts and answers in any order, some behind common prefixes: no livelock, no lost or repeated
    token, bounded preemptions; what is kept and what runs never exceeds the budget, but for the growth of
    rows that were preempted often enough."""
    generator = random.Random(seed)
    shared_prefix = prompt_of(100, seed)
    submits = [
        request(
            number, (shared_prefix[: generator.choice([0, 70])] + prompt_of(length, number))[:130], answer
        )
        for number, (length, answer) in enumerate(sizes)
    ]
    arrivals = {submit.request_id: generator.randrange(60) for submit in submits}
    farm, preemptions = _Farm(budget_tokens), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_memory, "GROWTH_TOKENS", 40)  # So that shorter answers outgrow it.
        for turn in range(30_000):
            arrived = [submit for submit in submits if arrivals[submit.request_id] == turn]
            for output in farm.iterate(*arrived):
                preemptions = output.counters.preemptions
            assert farm.held_bytes <= farm.budget_bytes or not farm.can_preempt
            if turn > 60 and farm.loop.idle:
                break
    for submit in submits:
        assert farm.retired[submit.request_id].reason == "length"
        assert farm.tokens[submit.request_id] == alone(ScriptedBackend(_HEALTHY), submit)
    assert preemptions <= MOST_PREEMPTIONS * len(submits)
    check_integrity(prefixes_of(farm.backend))


def test_what_can_never_fit_is_refused() -> None:
    """The longest that can is named, nothing else is disturbed."""
    farm = _Farm(budget_tokens=500)
    farm.iterate(request(1, prompt_of(600, 1), 5), request(2, prompt_of(50, 2), 5))
    farm.finish()
    assert farm.retired[1].reason == "refused"
    assert 500 <= farm.retired[1].most_tokens < 600
    assert farm.retired[2].reason == "length"


def _sequence(number: int, prompt: int, answer: int = 10, said: int = 0) -> EngineSequence:
    sequence = EngineSequence.of(request(number, prompt_of(prompt, number), answer))
    sequence.tokens.extend([1] * said)
    return sequence


def test_a_large_prompt_lets_smaller_ones_pass_but_not_for_ever() -> None:
    """vllm#31731: it does not block them; and after a while nobody passes it any more."""
    memory = _memory(1000)
    running = [_sequence(1, 500)]
    waiting = [_sequence(2, 600), _sequence(3, 100)]
    assert _admitted(_plan(waiting, running, memory, 4, now=1.0)) == waiting[1:]
    late = PATIENCE_SECONDS + 1
    assert _admitted(_plan(waiting, running, memory, 4, now=late)) == []
    assert _admitted(_plan(waiting, [], memory, 4, now=late))[0] is waiting[0]


def test_an_answer_that_goes_on_is_not_refused_for_its_own_length() -> None:
    """Its prompt fitted once; after an engine's death it comes back with all that it has generated."""
    memory = _memory(100)
    sequence = _sequence(1, 90, answer=200, said=50)
    sequence.requeue()
    assert memory.exceeded_tokens(sequence) is None
    assert memory.exceeded_tokens(_sequence(2, 101)) == 100


def _fits(memory: Memory, sequence: EngineSequence, known: int, running: list[EngineSequence]) -> bool:
    in_place = hit_in_place([known], [sequence.shared_with(row) for row in running], [0] * len(running), 0)
    return memory.coming_bytes(sequence, in_place, running) <= memory.room_bytes(running)


def test_a_hit_is_charged_for_what_it_computes() -> None:
    """What a running row stands on, too, is not needed twice; what is only kept will be copied."""
    memory = _memory(900, pinned_bytes=400)
    shared_prefix = prompt_of(400, 9)
    newcomer = EngineSequence.of(request(2, [*shared_prefix, *prompt_of(100, 2)], 10))
    sharer = EngineSequence.of(request(1, [*shared_prefix, 1], 10))
    sharer.in_place_tokens = 400
    assert not _fits(memory, newcomer, 0, [sharer])
    assert _fits(memory, newcomer, 400, [sharer])
    stranger = _sequence(3, 201)
    assert not _fits(memory, newcomer, 400, [stranger])


@pytest.mark.parametrize(("answer", "charged"), [(10, 110), (GROWTH_TOKENS, 100 + GROWTH_TOKENS)])
def test_a_row_reserves_a_share_of_what_it_may_say(answer: int, charged: int) -> None:
    """All of a short answer, a clipped share of a long one, and its output so far in any case."""
    assert charged_bytes(_sequence(1, 100, answer), _ONE) == charged
    assert charged_bytes(_sequence(1, 100, 100_000), _ONE) == 100 + GROWTH_TOKENS
    assert charged_bytes(_sequence(1, 100, 100_000, said=900), _ONE) == 100 + 901
