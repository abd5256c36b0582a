"""What is concluded from servers with several engines, and from the server alone."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from loadtests.chaos.report import text, verdict
from loadtests.pool import scale, server_alone
from loadtests.pool.commands import numbers, of_scale
from loadtests.pool.scale import Scaled, scales
from loadtests.pool.server_alone import ServerCost

LINEAR = [
    Scaled(1, tokens=500, seconds=20, cpu_seconds=0.1),
    Scaled(2, tokens=1000, seconds=20, cpu_seconds=0.2),
    Scaled(4, tokens=2000, seconds=20, cpu_seconds=0.4),
]
ALONE = [ServerCost(4, 1000, 10, 0.05), ServerCost(16, 4000, 10, 0.2)]


def test_linear_is_no_complaint() -> None:
    assert list(scale.complaints(LINEAR)) == []
    assert [one.linear for one in scales(LINEAR)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("tokens", "fine"), [(1901, True), (1899, False), (2500, True)])
def test_each_number_of_engines_is_held_to_the_fewest(tokens: int, fine: bool) -> None:
    """Four give at least 0.95 of four times one."""
    found = [*LINEAR[:2], replace(LINEAR[2], tokens=tokens)]
    assert (not list(scale.complaints(found))) == fine
    assert all("4 engines" in complaint for complaint in scale.complaints(found))


def test_the_fewest_need_not_be_one() -> None:
    """From 2 to 4."""
    assert [(one.engines, one.linear) for one in scales(LINEAR[1:])] == [(2, 1.0), (4, 1.0)]


def test_rounds_count_by_their_median() -> None:
    """One slow round of three, of a machine that was busy, decides nothing."""
    slow = replace(LINEAR[2], tokens=200)
    assert list(scale.complaints([*LINEAR, *LINEAR, *LINEAR[:2], slow])) == []
    assert list(scale.complaints([*LINEAR, *LINEAR[:2], slow, *LINEAR[:2], slow])) != []


def test_a_failed_answer_is_a_complaint() -> None:
    """Whatever the tokens are."""
    found = [*LINEAR[:2], replace(LINEAR[2], failures=("engine_lost",))]
    (complaint,) = scale.complaints(found)
    assert "engine_lost" in complaint


def test_the_front_alone_is_judged_from_fewest_to_most() -> None:
    """Engines that wait for it, or a token that costs more with more engines."""
    assert list(server_alone.complaints(ALONE)) == []
    (idle,) = server_alone.complaints([ALONE[0], replace(ALONE[1], tokens=3700, cpu_seconds=0.185)])
    assert "not kept busy" in idle
    (dear,) = server_alone.complaints([replace(ALONE[1], cpu_seconds=0.3), ALONE[0]])
    assert "1.50 times" in dear


def test_the_report_has_the_figures() -> None:
    """Tokens/s, of linear, and the server's cost of a token; and the verdict in words."""
    shown = text("Scale", [], list(of_scale(LINEAR, ALONE)))
    assert verdict("Scale", []) in shown
    assert "100.0, 1.000, 200 µs" in shown
    assert "400.0, 50 µs, 20,000" in shown


@pytest.mark.parametrize("given", ["", "0", "1,", "1,x", "-1", "2.5"])
def test_numbers_of_engines_are_checked(given: str) -> None:
    with pytest.raises(click.BadParameter, match="positive numbers"):
        numbers(None, None, given)


def test_numbers_of_engines_are_read_in_their_order() -> None:
    assert numbers(None, None, "4, 1,2") == (4, 1, 2)
