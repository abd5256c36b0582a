"""Baselines: passes, named regressions, and the process's exit code."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadtests.record import Outcome
from loadtests.report import verdict_report
from loadtests.verdict import Baseline, Expected, Verdict, baseline_of, judge, load, save
from tests.loadtests.recorded import request, run, simulated
from tests.loadtests.test_report import VOID, paced


def against(name: str, value: float, tolerance: float, seconds: float) -> Verdict:
    baseline = Baseline("agents", {name: Expected(value, tolerance)})
    return judge([paced("ours", seconds)], baseline)


def test_within_the_tolerance_is_no_regression() -> None:
    """TTFT 1.2 s, where 1 s is expected with a tolerance of a quarter."""
    verdict = against("ttft_p50", 1.0, 1.25, 1.2)
    assert verdict.exit_code == 0
    assert verdict.regressions == ()
    assert verdict.findings[0].worse_by == pytest.approx(1.2)


def test_beyond_the_tolerance_is_named() -> None:
    """More of what should be less."""
    verdict = against("ttft_p50", 1.0, 1.25, 1.5)
    assert verdict.exit_code == 1
    (regression,) = verdict.regressions
    assert regression.words == "ttft_p50: 1.50 s, expected 1.00 s: 1.50× as bad, 1.25× is allowed"


def test_less_of_what_should_be_more_is_a_regression() -> None:
    """Half the tokens/s is twice as bad; twice as many is fine."""
    assert against("output_tokens_per_second", 1.0, 1.9, 2.0).exit_code == 1
    assert against("output_tokens_per_second", 1.0, 2.1, 2.0).exit_code == 0
    assert against("output_tokens_per_second", 1.0, 1.0, 0.5).exit_code == 0


def test_a_figure_that_should_be_zero_must_be() -> None:
    """No failure is expected, one occurs: infinitely worse, whatever the tolerance."""
    baseline = Baseline("agents", {"failed": Expected(0.0, 10.0)})
    good = run(request(0, 0.0, 1.0))
    bad = run(*good.requests, request(1, 0.0, outcome=Outcome.CUT))
    assert judge([good], baseline).exit_code == 0
    assert judge([bad], baseline).exit_code == 1


def test_what_was_not_measured_is_a_regression() -> None:
    """A figure without a value fails the gate; so does one that no longer exists."""
    for name in ("cached_share", "no_such_figure"):
        verdict = against(name, 0.5, 2.0, 1.0)
        assert verdict.exit_code == 1
        assert "not measured" in verdict.regressions[0].words


def test_ratios_between_targets_are_compared_likewise() -> None:
    """Ours took half the peer's time once; now it takes the same."""
    baseline = Baseline("agents", ratios={"ours/peer": {"ttft_p50": Expected(0.5, 1.5)}})
    assert judge([paced("ours", 1), paced("peer", 2)], baseline).exit_code == 0
    verdict = judge([paced("ours", 2), paced("peer", 2)], baseline)
    assert [finding.name for finding in verdict.regressions] == ["ours/peer ttft_p50"]
    assert judge([paced("ours", 9), paced("peer", 18)], baseline).exit_code == 0


def test_a_missing_target_or_scenario_is_no_pass() -> None:
    """A gate that compares nothing must not be green."""
    baseline = Baseline("agents", ratios={"ours/peer": {"ttft_p50": Expected(0.5)}})
    assert judge([paced("ours", 1)], baseline).exit_code == 1
    assert judge([], Baseline("soak")).problems == ("there is no run of the scenario 'soak'",)


def test_void_and_interrupted_runs_are_no_pass() -> None:
    """However good they look."""
    baseline = Baseline("agents", {"ttft_p50": Expected(100.0)})
    assert judge([paced("ours", 1, generator=VOID)], baseline).exit_code == 1
    assert judge([run(request(0, 0.0, 1.0), interrupted=True)], baseline).exit_code == 1


def test_a_void_round_among_good_ones_is_left_out() -> None:
    """The others count."""
    baseline = Baseline("agents", {"ttft_p50": Expected(1.0)})
    assert judge([paced("ours", 1), paced("ours", 90, 1, VOID)], baseline).exit_code == 0


def test_runs_pass_the_baseline_that_was_made_of_them(tmp_path: Path) -> None:
    """Written, read again, and met exactly; a slower run fails."""
    runs = [simulated("ours"), simulated("peer", pace=2.0)]
    save(tmp_path / "baseline.json", baseline_of(runs, tolerance_ratio=1.0))
    baseline = load(tmp_path / "baseline.json")
    assert "ttft_p95" in baseline.figures
    assert "output_tokens_per_second" in baseline.ratios["ours/peer"]
    assert judge(runs, baseline).exit_code == 0
    slower = judge([simulated("ours", pace=1.5), runs[1]], baseline)
    assert {"ttft_p95", "ours/peer ttft_p95"} <= {finding.name for finding in slower.regressions}


def test_no_baseline_comes_of_void_runs_or_of_two_scenarios() -> None:
    """It would be trusted later."""
    with pytest.raises(ValueError, match="void"):
        baseline_of([paced("ours", 1, generator=VOID)])
    with pytest.raises(ValueError, match="exactly one scenario"):
        baseline_of([run(), run(scenario="soak")])


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        '{"scenario": "agents", "figure": {}}',
        '{"scenario": "agents", "figures": {"ttft_p50": {"value": 1, "tolerance_ratio": 0.9}}}',
        '{"scenario": "agents", "figures": {"ttft_p50": {"value": -1}}}',
    ],
)
def test_a_file_that_is_no_baseline_is_named(text: str, tmp_path: Path) -> None:
    """Otherwise a misspelt key would be a gate without effect."""
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"baseline\.json is not a baseline"):
        load(path)


@given(st.floats(1e-3, 1e3), st.floats(1, 10), st.floats(1e-3, 1e3))
def test_units_do_not_matter(value: float, tolerance: float, factor: float) -> None:
    """A verdict is by ratio: if everything is slower by one factor, baseline too, the verdict is the same."""
    one = against("ttft_p50", 1.0, tolerance, value).findings[0].worse_by
    other = against("ttft_p50", factor, tolerance, value * factor).findings[0].worse_by
    assert one == pytest.approx(other)


def test_the_verdict_is_printed() -> None:
    """Regressions and passes, by name."""
    buffer = StringIO()
    Console(file=buffer, width=120).print(verdict_report(against("ttft_p50", 1.0, 1.25, 1.5)))
    Console(file=buffer, width=120).print(verdict_report(against("ttft_p50", 1.0, 1.25, 1.0)))
    Console(file=buffer, width=120).print(verdict_report(judge([], Baseline("soak"))))
    text = buffer.getvalue()
    assert "WORSE ttft_p50" in text
    assert "1 regressed." in text
    assert "No regression." in text
    assert "there is no run" in text
