"""What a comparison of turns with and without drafts says."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.speculation.measure import Bench, Pair, Turn, described
from loadtests.speculation.workloads import WORKLOADS
from scheduler.models.random_qwen3 import write_model
from tests.examples import sampled
from tests.scheduler.engine.mlx.grammar_engine import SHAPE


def _turn(tokens: int, seconds: float, steps: int, answers: dict[tuple[int, int], list[int]]) -> Turn:
    return Turn(tokens, seconds, 2 * seconds, steps, 0.5, {"long_match": (9, 6)}, answers)


def test_rates_are_of_tokens_and_answers_are_compared_as_far_as_both_go() -> None:
    plain = _turn(100, 10.0, 50, {(0, 0): [1, 2, 3], (1, 0): [4, 5, 6], (0, 1): [7]})
    drafted = _turn(120, 4.0, 20, {(0, 0): [1, 2, 3, 4], (1, 0): [4, 9]})
    pair = Pair(plain, drafted)
    assert pair.wall_ratio == pair.processor_ratio == pytest.approx(3.0)
    assert pair.equal == (1, 2)
    line = described("repeat", 2, [pair, pair])
    assert line.startswith(" 2 rows, repeat: 3.00 of the tokens/s without (aim 1.4), 3.00 by processor time;")
    assert "3.00 tokens a row and step; accepted long_match 12/18; saved 1.0 s of 8.0" in line
    assert "2 of 4 answers equal; a plain step 200.0 ms" in line


@pytest.mark.parametrize("workload", sampled(WORKLOADS, ["schema", "free"]))
def test_a_model_is_measured(workload: str, tmp_path: Path) -> None:
    """A random one, whose text nobody can read: all that it shows are equal answers, and as many tokens as
    were asked for."""
    write_model(SHAPE, tmp_path)
    (pair,) = Bench(tmp_path, 12, "processor").pairs(workload, 2, 1)
    assert min(pair.plain.tokens, pair.drafted.tokens) >= 24
    assert pair.drafted.tokens >= pair.drafted.steps
    equal, answers = pair.equal
    assert equal == answers >= 2
