"""Any company: rows with and without adapters join, follow one another, are cancelled and preempted, and each
gets the tokens of its own adapter alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.engine.disk.disk_tier import DiskTier
from tests.examples import examples, sampled
from tests.scheduler.engine.mlx.adapters.adapted import AdaptedEngine, write_adapter
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import disk_of, words
from tests.scheduler.engine.mlx.zoo.company import Kind


def engine_of(family: str, folder: Path, **changes: Any) -> AdaptedEngine:
    red = write_adapter(random_model(family), folder / "red", seed=1, rank=4, scale=2.0)
    blue = write_adapter(random_model(family), folder / "blue", seed=2, rank=4, scale=2.0)
    return AdaptedEngine(family, red, blue, **changes)


@pytest.mark.parametrize("family", sampled(["qwen3", "gpt_oss", "qwen3_next"], ["gpt_oss"]))
def test_each_has_the_tokens_of_its_adapter_alone(family: str, tmp_path: Path) -> None:
    Kind(family, adapters=tmp_path, small=True).meet(examples(8), 0)


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
            tier=DiskTier(tmp_path / "disk", "a model", 1 << 30),
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
