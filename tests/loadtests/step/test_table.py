"""What is made of the runs: which steps count, and how tokens are followed to their clients."""

from __future__ import annotations

from collections import defaultdict

import pytest

from loadtests.step.record import Run, Step
from loadtests.step.table import counts, steady, times, way_out


def _steps(*rows: int, **counts: int) -> Run:
    return Run([Step(one, {"plan": (0.001 * at, 0.001)}, counts) for at, one in enumerate(rows)])


def test_only_steps_of_all_rows_count_and_not_the_first_ones() -> None:
    timed = _steps(0, 2, 2, 2, 2, 1, 2, 2, 2, **{"page faults": 3, "waits of threads": 5})
    counted = _steps(2, 2, 2, 2, 2, calls=7)
    assert len(steady(timed, rows=2)) == 3
    assert times(timed, rows=2)["plan"][0] == times(timed, rows=2)["whole step"][0] == pytest.approx(7.0)
    assert counts((timed, counted), rows=2) == {"page faults": 3, "waits of threads": 5, "calls": 7}
    with pytest.raises(ValueError, match="no step gave all 3 rows"):
        times(timed, rows=3)


def _run(**stamps: list[tuple[int, int, float]]) -> Run:
    return Run(stamps=defaultdict(list, stamps))


def test_each_token_is_followed_by_its_frame_to_the_write_that_has_it() -> None:
    """A slow reader's write may have several tokens, and two requests share a frame."""
    tokens = {(1, 1): 0.0, (2, 1): 0.0, (1, 2): 1.0, (2, 2): 1.0, (1, 3): 2.0}
    engine = _run(
        sampled=[(*token, at) for token, at in tokens.items()],
        sent=[(*token, at + 0.1) for token, at in tokens.items()],
    )
    server = _run(
        parsed=[(*token, at + 0.3) for token, at in tokens.items()],
        text=[(*token, 0.0) for token in tokens],
        # The first tokens of answers are left out: they carry the response's head.
        written=[(1, 1, 0.9), (2, 1, 0.9), (2, 2, 1.5), (1, 3, 2.5)],
    )
    found = way_out(engine, server)
    assert {stage: spread[0] for stage, spread in found.items()} == pytest.approx(
        {
            "sampled to sent": 100.0,
            "sent to parsed": 200.0,
            "parsed to written": 200.0,
            "sampled to written": 500.0,
        }
    )
    assert found["sampled to written"][1] == pytest.approx(1480.0, rel=0.02)


def test_a_token_without_text_is_not_late() -> None:
    """The next one completes the character, and is written at once."""
    engine = _run(
        sampled=[(1, 1, 0.0), (1, 2, 1.0), (1, 3, 9.0)], sent=[(1, 1, 0.1), (1, 2, 1.1), (1, 3, 9.1)]
    )
    server = _run(
        parsed=[(1, 1, 0.2), (1, 2, 1.2), (1, 3, 9.2)],
        text=[(1, 1, 0.2), (1, 3, 9.2)],
        written=[(1, 1, 0.3), (1, 3, 9.3)],
    )
    assert way_out(engine, server)["sampled to written"][1] == pytest.approx(300.0)
