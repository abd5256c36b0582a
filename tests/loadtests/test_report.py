"""Ratios, warnings, and what a reader of the tables and of the page sees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadtests.pairs import Across, columns, ratio
from loadtests.record import GeneratorHealth, Outcome, RunRecord, ServerSample
from loadtests.report import print_report, write_html
from loadtests.server_side import parse, server_side
from tests.loadtests.recorded import HEALTHY, request, run

VOID = GeneratorHealth(cpu_share=0.95, lag_p99_seconds=0.156)
BUSY = "the load generator used 95% of its core (bound 90%)"


def paced(target: str, seconds: float, round_: int = 0, generator: GeneratorHealth = HEALTHY) -> RunRecord:
    """One request with all latencies of `seconds`, and tokens at 1/seconds."""
    asked, end = request(0, 0.0, seconds, 2 * seconds), 2 * seconds
    return run(asked, target=target, round=round_, ended_at=end, steady_until=end, generator=generator)


def printed(runs: Sequence[RunRecord]) -> str:
    buffer = StringIO()
    print_report(runs, Console(file=buffer, width=200))
    return buffer.getvalue()


def rows(text: str, label: str) -> list[list[str]]:
    """Return the cells of rows whose first cell begins with this."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return [row for row in cells if row and row[0].startswith(label)]


def test_ratios_pair_the_runs_of_one_round() -> None:
    """1/2, 2/2 and 3/12 in three rounds: the median is 0.5, from 0.25 to 1."""
    runs = [
        *(paced("ours", 1, 0), paced("peer", 2, 0)),
        *(paced("ours", 2, 1), paced("peer", 2, 1)),
        *(paced("ours", 3, 2), paced("peer", 12, 2)),
    ]
    ours, peer = columns(runs)
    assert ratio(ours, peer, "ttft_p50") == Across(0.5, 0.25, 1.0, 3)
    assert rows(printed(runs), "TTFT p50") == [
        ["TTFT p50 ↓", "2.00 (1.00–3.00) s", "2.00 (2.00–12.0) s", "0.50 (0.25–1.00)×"]
    ]


def test_void_rounds_are_in_no_ratio_and_no_median() -> None:
    """A generator that was the bottleneck measured itself."""
    runs = [paced("ours", 1), paced("peer", 2), paced("ours", 50, 1, VOID), paced("peer", 2, 1)]
    ours, peer = columns(runs)
    assert ratio(ours, peer, "ttft_p50") == Across(0.5, 0.5, 0.5, 1)
    assert ours.across("ttft_p50") == Across(1.0, 1.0, 1.0, 1)
    first, second = ours.marks
    assert first == f"GENERATOR LATE: ours, round 1: {BUSY} and was late by 0.156 s at p99 (bound 0.1 s)"
    assert second.startswith("FEW SAMPLES: ours: 1 of the requests counted")
    assert GeneratorHealth(cpu_share=0.9, lag_p99_seconds=0.1).void is None


def test_a_ratio_needs_both_and_a_divisor() -> None:
    """Neither a missing value nor a zero has a ratio. Runs of one target and round, of two files, are not
    rounds."""
    ours, empty, again = columns([paced("ours", 1), run(target="peer"), paced("ours", 2)])
    assert ratio(ours, empty, "ttft_p50") is ratio(ours, empty, "output_tokens_per_second") is None
    assert again.label == "ours #2"


@pytest.mark.parametrize(
    ("outcome", "status", "shown"),
    [
        (Outcome.CONNECT_FAILED, None, "connect_failed"),
        (Outcome.HTTP_ERROR, 500, "http_error 500"),
        (Outcome.CUT, 200, "cut"),
        (Outcome.REFUSED, 503, "refused 503"),
    ],
)
def test_a_broken_target_is_plain_to_see(outcome: Outcome, status: int | None, shown: str) -> None:
    """By kind, with counts and the target's error, brackets included."""
    failed = [request(n, 1.0, outcome=outcome, status=status, detail="no [bold]way[/]") for n in range(3)]
    text = printed([run(*failed, request(3, 1.0, 2.0))])
    assert rows(text, shown) == [[shown, "ours", "agents", "3 of 4", "no [bold]way[/]"]]
    assert ("FAILED: ours: 3 counted requests" in text) is (outcome is not Outcome.REFUSED)


def test_warnings_stand_before_any_figure() -> None:
    """Void, interrupted, and few samples: in the mean not one of 19 is beyond the p95; one of 20 is."""
    asked = [request(n, 0.1 * n, 0.1 * n + 1.0) for n in range(20)]
    text = printed([run(*asked[1:], generator=VOID, interrupted=True)])
    first = text.index("In short")
    assert text.index(f"GENERATOR LATE: ours, round 0: {BUSY}") < first
    assert text.index("INTERRUPTED: ours, round 0, after 10.0 s") < first
    assert text.index("FEW SAMPLES: ours: 19 of the requests counted; a p95 takes 20") < first
    assert "FEW SAMPLES" not in printed([run(*asked)])


def test_the_targets_counters_are_their_growth() -> None:
    """Over all series; one that fell was reset, one that is new began at nothing. Histograms are dropped."""
    exposition = 'penstock_generated_tokens_total{engine="0"} 5.0\nother 3\npenstock_x_bucket{le="1"} 2\n'
    assert parse(exposition) == {'penstock_generated_tokens_total{engine="0"}': 5.0}
    first = {'penstock_generated_tokens_total{engine="0"}': 5.0, "vllm:prompt_tokens_total": 9.0}
    last = {
        'penstock_generated_tokens_total{engine="0"}': 3.0,
        'penstock_generated_tokens_total{engine="1"}': 4.0,
        "vllm:prompt_tokens_total": 10.0,
    }
    samples = (ServerSample(at=0.0, samples=first), ServerSample(at=1.0, samples=last))
    asked = request(0, 0.0, 1.0, 2.0, prompt_tokens=1)
    assert list(server_side(run(asked, server=samples))) == [
        ("Prompt tokens", 1.0, 1),
        ("Generated tokens", 7.0, 2),
    ]


def test_the_page_needs_nothing_else_and_escapes_what_servers_say(tmp_path: Path) -> None:
    """Tables and plots of both targets; a server's error is text."""
    failed = request(1, 0.0, outcome=Outcome.HTTP_ERROR, status=500, detail="<script>alert(1)</script>")
    runs = [paced("ours <1>", 1), run(request(0, 0.0, 1.0, 2.0), failed, target="peer")]
    write_html(tmp_path / "page.html", runs)
    page = (tmp_path / "page.html").read_text("utf-8")
    assert not re.search("<script|<link|src=|href=|@import", page)
    assert page.count("<svg") == 2 * 2
    for words in ("ours &lt;1&gt;", "&lt;script&gt;", "Output tokens/s", "numpy&#39;s default", "1 of 2"):
        assert words in page, words
