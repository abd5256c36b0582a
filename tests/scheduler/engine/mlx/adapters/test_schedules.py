"""Any company: rows with and without adapters join, follow one another, are cancelled and preempted, and each
gets the tokens of its own adapter alone, greedy or with a seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.plan import StepPlan
from scheduler.shared.messages import Cancel, Sampling, Submit
from tests.contracts.journal import GREEDY
from tests.examples import examples, sampled
from tests.scheduler.engine.mlx.adapters.adapted import AdaptedEngine, write_adapter
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import disk_of, words

SEEDED = msgspec.structs.replace(GREEDY, temperature=0.8, seed=5)
STEM = words(26, 900)
PREFIXES: tuple[list[int], ...] = ([], STEM, STEM[:19] + words(10, 901))


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, and when it comes and leaves. `adapter`: 0 is none."""

    after_turns: int
    adapter: int
    prefix: int
    rest_tokens: int
    rest_seed: int
    answer_tokens: int
    sampling: Sampling
    stays_turns: int | None

    def submit(self, engine: AdaptedEngine) -> Submit:
        prompt = [*PREFIXES[self.prefix], *words(self.rest_tokens, self.rest_seed)]
        keys = ["", *(source.key for source in engine.sources)]
        return engine.submit(
            prompt, adapter=keys[self.adapter], max_tokens=self.answer_tokens, sampling=self.sampling
        )


VISITS = st.lists(
    st.builds(
        Visit,
        after_turns=st.integers(0, 3),
        adapter=st.integers(0, 2),
        prefix=st.sampled_from([1, 2, 0]),
        rest_tokens=st.one_of(st.integers(1, 4), st.integers(5, 20)),
        rest_seed=st.integers(0, 1),
        answer_tokens=st.integers(2, 9),
        sampling=st.sampled_from([GREEDY, SEEDED]),
        stays_turns=st.one_of(st.none(), st.none(), st.integers(0, 12)),
    ),
    min_size=4,
    max_size=9,
)


def engine_of(family: str, folder: Path, **changes: Any) -> AdaptedEngine:
    red = write_adapter(random_model(family), folder / "red", seed=1, rank=4, scale=2.0)
    blue = write_adapter(random_model(family), folder / "blue", seed=2, rank=4, scale=2.0)
    return AdaptedEngine(family, red, blue, **changes)


def live(engine: AdaptedEngine, visits: list[Visit]) -> None:
    submits: list[tuple[Visit, Submit]] = []
    leaving: dict[int, list[Submit]] = {}
    turn = 0

    def turns(count: int) -> None:
        nonlocal turn
        for _ in range(count):
            engine.iterate([Cancel(one.request_id) for one in leaving.pop(turn, [])])
            turn += 1

    for visit in visits:
        turns(visit.after_turns)
        submit = visit.submit(engine)
        submits.append((visit, submit))
        engine.iterate([submit])
        if visit.stays_turns is not None:
            leaving.setdefault(turn + visit.stays_turns, []).append(submit)
    turns(13)
    engine.finish()
    for visit, submit in submits:
        if visit.stays_turns is None:
            engine.check(submit)
        else:
            engine.check_beginning(submit)


@pytest.mark.parametrize("family", sampled(["qwen3", "gpt_oss", "qwen3_next"], ["gpt_oss"]))
def test_each_has_the_tokens_of_its_adapter_alone(family: str, tmp_path: Path) -> None:
    engine = engine_of(family, tmp_path)

    @settings(
        max_examples=examples(4),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(VISITS)
    def check(visits: list[Visit]) -> None:
        live(engine, visits)

    check()


def test_preempted_rows_keep_their_adapters(tmp_path: Path) -> None:
    """Their tokens are computed again, or found in the cache."""
    engine = engine_of("qwen3", tmp_path)
    keys = ["", *(source.key for source in engine.sources)]
    submits = [
        engine.submit(words(17, number), adapter=keys[number % 3], max_tokens=16) for number in range(6)
    ]
    engine.iterate(submits)
    for turn in range(16):
        if turn % 4 == 3:
            for sequence in [one for one in engine.loop._slots if not one.prefilling][: turn // 3]:
                # As where memory runs out.
                engine.loop._step(StepPlan(preempt=(sequence.request_id,)))
        engine.iterate()
    assert engine.loop._meter.totals.preemptions > 5
    engine.finish()
    for submit in submits:
        engine.check(submit)


def test_followers_wait_for_a_leader_with_their_adapter(tmp_path: Path) -> None:
    """Rows of one adapter compute a common prompt once; those of another one compute their own."""
    engine = engine_of("qwen3", tmp_path)
    red, blue = (source.key for source in engine.sources)
    prompt = words(60, 4)
    engine.ask(*(engine.submit([*prompt, number], adapter=key) for key in (red, blue) for number in range(3)))
    cached = [engine.heard[number].cached for number in range(1, 7)]
    assert sorted(cached[:3]) == sorted(cached[3:]) == [0, 60, 60]


def test_a_row_without_its_adapter_is_refused(tmp_path: Path) -> None:
    engine = engine_of("qwen3", tmp_path)
    submit = engine.submit(words(5, 1), adapter="unknown")
    engine.iterate([submit])
    retired = engine.heard[submit.request_id].retired
    assert retired is not None
    assert (retired.reason, retired.detail) == ("refused", "its adapter is not loaded")


def test_prefixes_on_disk_are_those_of_one_adapter(tmp_path: Path) -> None:
    """A restarted engine reads what was computed with the same adapter, and nothing else."""
    prompt = words(530, 5)

    def engine() -> AdaptedEngine:
        return engine_of(
            "qwen3",
            tmp_path,
            tier=DiskTier(tmp_path / "disk", "a model", 1 << 30, lone_snapshots=False),
            prefill_chunk_tokens=128,
        )

    first = engine()
    red, blue = (source.key for source in first.sources)
    first.ask(first.submit(prompt, adapter=red))
    while not first.loop.resting:
        first.iterate()
    assert disk_of(first.backend).tier.close(20.0)
    second = engine()
    heard = {
        key: second.ask(second.submit([*prompt, 7], adapter=key, max_tokens=2))[0].cached
        for key in ("", blue, red)
    }
    assert heard == {"": 0, blue: 0, red: 512}
