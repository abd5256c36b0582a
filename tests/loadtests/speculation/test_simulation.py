"""The simulated device says what its model means, and that nothing becomes slower."""

from __future__ import annotations

import pytest

from loadtests.speculation.simulation import DEVICES, TEXTS, DeviceModel, described, simulated
from loadtests.speculation.workloads import COPY_HEAVY, WORKLOADS, least_ratio, tasks
from tests.examples import sampled

FREE, IN_ALL = DEVICES


def test_a_step_lasts_as_its_model_says() -> None:
    assert FREE.seconds(32, 17) == pytest.approx(0.021)
    assert FREE.seconds(32, 1) == pytest.approx(0.02)
    assert IN_ALL.seconds(4, 16) == pytest.approx(0.021)
    assert IN_ALL.seconds(32, 4) == pytest.approx(0.041)


@pytest.mark.parametrize("rows", sampled([1, 8], [1]))
def test_text_that_is_copied_comes_several_times_as_fast(rows: int) -> None:
    """The less of it is copied, the less; where many rows share the device's speed, the less."""
    ratios = [simulated(FREE, text, rows).ratio for text in TEXTS]
    assert ratios == sorted(ratios, reverse=True)
    # As answers end, each size of the batch first has plain steps to measure: 7.7 at 8 rows.
    assert ratios[0] > (8 if rows == 1 else 7)
    assert simulated(IN_ALL, "repeat", 16).ratio < simulated(FREE, "repeat", 16).ratio / 2


@pytest.mark.parametrize("rows", sampled([1, 8, 32], [1]))
@pytest.mark.parametrize("text", TEXTS)
def test_nothing_becomes_slower(text: str, rows: int) -> None:
    """Not even where every token of a step costs as much as the first: what was tried is not tried again."""
    dear = DeviceModel("a device without spare arithmetic", 1)
    for device in (*DEVICES, dear):
        assert simulated(device, text, rows).ratio >= 0.98


def test_equal_simulations_are_equal() -> None:
    assert simulated(FREE, "edit 1 in 12", 4) == simulated(FREE, "edit 1 in 12", 4)


def test_the_first_line_says_that_it_is_a_simulation() -> None:
    lines = list(described([1]))
    assert lines[0].startswith("SIMULATED")
    assert len(lines) == 1 + len(DEVICES) * len(TEXTS)


def test_the_aims_are_those_of_each_width() -> None:
    aims = [[least_ratio(name, rows) for rows in (1, 4, 8, 16, 32)] for name in WORKLOADS]
    assert aims == [[2.0, 1.4, 1.4, 1.05, 1.05]] * len(COPY_HEAVY) + [[0.98] * 5]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_row_is_asked_something_else(workload: str) -> None:
    """Rows that wrote the same text would share more than agents do."""
    asked = list(tasks(workload, 8))
    assert len({task.message for task in asked}) == 8
    assert list(tasks(workload, 8)) == asked
