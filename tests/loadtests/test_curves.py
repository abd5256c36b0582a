"""Curves: the trade-off of one option in two figures, and a step's time by its size."""

from __future__ import annotations

import pytest

from loadtests import scenario as scenarios
from loadtests.html_report import render
from loadtests.row_costs import described as described_costs
from loadtests.scenario import ScenarioError
from loadtests.step_curves import Pair, Size, Step, described
from loadtests.step_curves import plot as plot_steps
from loadtests.sweep import ALONE, DEFAULT, Axis, launch_of, plot, points
from tests.loadtests.recorded import request, run


def test_a_figure_is_of_everybody_or_of_one_population() -> None:
    """`name@population`; a figure that the run does not have is None."""
    recorded = run(
        request(0, 1.0, 3.0, population="book"), request(1, 0.0, 0.5, population="streams"), unmeasured=()
    )
    assert Axis("ttft_p50@book").of(recorded) == pytest.approx(2.0)
    assert Axis("ttft_p50@streams").of(recorded) == pytest.approx(0.5)
    assert Axis("nonesuch").of(recorded) is None
    assert Axis("ttft_p50@nobody").of(recorded) is None


def test_x_is_in_multiples_of_what_the_population_had_alone() -> None:
    """The reference run is not a point of the curve; without one x is the figure itself, and without its
    figure there is no multiple."""
    runs = [
        run(request(0, 0.0, 2.0, population="book"), target=ALONE, unmeasured=()),
        run(request(0, 0.0, 3.0, population="book"), target=DEFAULT, unmeasured=()),
        run(request(0, 0.0, 5.0, population="book"), target="20", unmeasured=()),
    ]
    x, y = Axis("ttft_p50@book"), Axis("ttft_p50@book")
    assert [(p.value, p.x, p.y) for p in points(runs, x, y)] == [(DEFAULT, 1.5, 3.0), ("20", 2.5, 5.0)]
    assert [p.x for p in points(runs[1:], x, y)] == [3.0, 5.0]
    failed = run(request(0, 0.0, 2.0, population="other"), target=ALONE, unmeasured=())
    assert [p.x for p in points([failed, *runs[1:]], x, y)] == [None, None]


def test_the_default_leaves_the_option_out() -> None:
    """So that the server's default is among the points."""
    assert launch_of("--itl-target-ms", "40").arguments == ("--itl-target-ms", "40")
    assert launch_of("--itl-target-ms", DEFAULT).arguments == ()


def test_a_scenario_with_and_without_a_population() -> None:
    """Alone it starts immediately; an unknown name is an error that lists the known ones."""
    whole = scenarios.load("long-prompt")
    assert [(p.name, p.start_seconds) for p in whole.only("book").populations] == [("book", 0.0)]
    assert [p.name for p in whole.without("book").populations] == ["streams"]
    with pytest.raises(ScenarioError, match="streams, book"):
        whole.without("flood")


_PAIRS = [
    Pair(Step(Size(8, 0), 0.01, 1_000_000), Step(Size(8, 0), 0.012, 2_000_000)),
    Pair(Step(Size(8, 4096), 0.02, 3_000_000), Step(Size(8, 4096), 0.05, 9_000_000)),
    Pair(Step(Size(8, 16384), 0.04, 9_000_000), None),
]


def test_a_pair_of_steps_is_reported_as_a_ratio() -> None:
    """A size without a measurement is reported as such."""
    assert described(_PAIRS[1]).endswith("2.50 times as long")
    assert "not measured" in described(_PAIRS[2])
    assert Size(32, 4096).copied_bytes(6144) == 32 * (4096 + 64) * 6144


def test_curves_stand_on_a_page_of_their_own() -> None:
    """With or without runs below them, and equal for equal figures."""
    pytest.importorskip("matplotlib", reason="needs the extra 'bench'")
    found = points([run(request(0, 0.0, 3.0), target="20")], Axis("ttft_p50"), Axis("e2e_p50"))
    curves = [plot_steps(_PAIRS), plot(found, "--itl-target-ms", "TTFT", "E2E")]
    page = render([], "a machine", curves)
    assert page == render([], "a machine", curves)
    assert page.count("<svg") == 2
    assert "No run was recorded" not in page


def test_a_row_cost_is_the_median_of_ratios_within_rounds() -> None:
    """Not the ratio of medians: a round on a busy machine slows both batches."""
    turns = {
        0: [(0.010, 0.020), (0.100, 0.020), (0.010, 0.020)],
        4: [(0.011, 0.03), (0.11, 0.03), (0.020, 0.02)],
    }
    plain, featured = described_costs(turns)
    assert plain == " 0 of 32 rows: 10.00 ms a step, 1.000 of a plain batch's, 1.000 of its processor time"
    assert featured == " 4 of 32 rows: 20.00 ms a step, 1.100 of a plain batch's, 1.500 of its processor time"
