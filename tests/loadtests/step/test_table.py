"""What is made of the runs: which steps count, and how tokens are followed to their clients."""

from __future__ import annotations

import pytest

from loadtests.step.record import Run, Step
from loadtests.step.table import side, way_out


def _steps(*rows: int, **more: int) -> Run:
    return Run([Step(one, {"plan": (0.001 * at, 0.001)}, **more) for at, one in enumerate(rows)])


def test_only_steps_of_all_rows_count_and_not_the_first_ones() -> None:
    timed = _steps(0, 2, 2, 2, 2, 1, 2, 2, 2)
    found = side(timed, _steps(2, 2, 2, 2, 2, other_calls=7), rows=2)
    assert found.steps == 3
    assert found.parts["plan"].passed.median == pytest.approx(7.0)
    assert found.counts["Python calls"] == 7
    with pytest.raises(ValueError, match="no step gave all 3 rows"):
        side(timed, timed, rows=3)


def test_each_token_is_followed_by_its_frame_to_the_write_that_has_it() -> None:
    """A slow reader's write may have several tokens, and two requests share a frame."""
    engine = Run(
        sampled=[(1, 1, 0.0), (2, 1, 0.0), (1, 2, 1.0), (2, 2, 1.0), (1, 3, 2.0)],
        carried=[(1, 1, 5), (2, 1, 5), (1, 2, 6), (2, 2, 6), (1, 3, 7)],
        frames=[(5, 0.1), (6, 1.1), (7, 2.1)],
    )
    server = Run(
        frames=[(5, 0.3), (6, 1.3), (7, 2.3)],
        texts=[(1, 1), (2, 1), (2, 2), (1, 2), (1, 3)],
        # The first tokens of answers are left out: they carry the response's head.
        written=[(1, 1, 0.9), (2, 1, 0.9), (2, 2, 1.5), (1, 3, 2.5)],
    )
    found = way_out(engine, server)
    assert {stage: spread.median for stage, spread in found.items()} == pytest.approx(
        {
            "sampled to sent": 100.0,
            "sent to parsed": 200.0,
            "parsed to written": 200.0,
            "sampled to written": 500.0,
        }
    )
    assert found["sampled to written"].p99 == pytest.approx(1480.0, rel=0.02)


def test_a_token_without_text_is_not_late() -> None:
    """The next one completes the character, and is written at once."""
    engine = Run(
        sampled=[(1, 1, 0.0), (1, 2, 1.0), (1, 3, 9.0)],
        carried=[(1, 1, 1), (1, 2, 2), (1, 3, 3)],
        frames=[(1, 0.1), (2, 1.1), (3, 9.1)],
    )
    server = Run(
        frames=[(1, 0.2), (2, 1.2), (3, 9.2)], texts=[(1, 1), (1, 3)], written=[(1, 1, 0.3), (1, 3, 9.3)]
    )
    assert way_out(engine, server)["sampled to written"].p99 == pytest.approx(300.0)
