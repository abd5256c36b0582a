"""The tables, the summary sentence, and the warnings."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from loadtests.pairs import Across, columns, ratio, sentences
from loadtests.record import GeneratorHealth, Outcome, RunRecord, void
from loadtests.report import print_report
from tests.loadtests.recorded import HEALTHY, request, run, simulated

VOID = GeneratorHealth(
    cpu_share=0.95, lag_p50_seconds=0.1, lag_p99_seconds=0.5, void="the generator was late"
)


def paced(target: str, seconds: float, round_: int = 0, generator: GeneratorHealth = HEALTHY) -> RunRecord:
    """One request with all latencies of `seconds`, and tokens at 1/seconds."""
    asked = request(0, 0.0, seconds, 2 * seconds)
    end = 2 * seconds
    return run(asked, target=target, round=round_, ended_at=end, steady_until=end, generator=generator)


def printed(runs: Sequence[RunRecord], width: int = 160, formulas: bool = False) -> str:
    buffer = StringIO()
    print_report(runs, Console(file=buffer, width=width), formulas)
    return buffer.getvalue()


def rows(text: str, label: str) -> list[list[str]]:
    """Return the cells of rows whose first cell begins with this."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return [row for row in cells if row and row[0].startswith(label)]


# --- pairs


def test_ratios_pair_the_runs_of_one_round() -> None:
    """1/2, 2/2 and 3/12 in three rounds: the median is 0.5, from 0.25 to 1."""
    runs = [
        *(paced("ours", 1, 0), paced("peer", 2, 0)),
        *(paced("ours", 2, 1), paced("peer", 2, 1)),
        *(paced("ours", 3, 2), paced("peer", 12, 2)),
    ]
    ours, peer = columns(runs)
    assert ratio(ours, peer, "ttft_p50") == Across(0.5, 0.25, 1.0, 3)


def test_void_rounds_are_in_no_ratio_and_no_median() -> None:
    """A generator that was the bottleneck measured itself."""
    ours, peer = columns(
        [paced("ours", 1), paced("peer", 2), paced("ours", 50, 1, VOID), paced("peer", 2, 1)]
    )
    assert ratio(ours, peer, "ttft_p50") == Across(0.5, 0.5, 0.5, 1)
    assert ours.across("ttft_p50") == Across(1.0, 1.0, 1.0, 1)
    first, second = ours.marks
    assert first == "GENERATOR LATE: ours, round 1: the generator was late"
    assert second.startswith("FEW SAMPLES: ours: 1 of the requests counted")


def test_runs_of_two_files_are_two_columns() -> None:
    """Before and after a change, of one target and round, are not rounds."""
    assert [column.label for column in columns([paced("ours", 1), paced("ours", 2)])] == ["ours", "ours #2"]


def test_a_ratio_needs_both_and_a_divisor() -> None:
    """Neither a missing value nor a zero has a ratio."""
    ours, empty = columns([paced("ours", 1), run(target="peer")])
    assert ratio(ours, empty, "ttft_p50") is None
    assert ratio(ours, empty, "output_tokens_per_second") is None
    assert ratio(ours, empty, "no_such_figure") is None


# --- the sentence


def test_the_sentence_says_who_is_faster_and_by_how_much() -> None:
    """Twice as fast in everything, in one pair of runs."""
    (said,) = sentences(columns([paced("ours", 1), paced("peer", 2)]))
    assert said == (
        "ours is faster than peer: 2.00× the output tokens/s, TTFT p95 2.00× shorter, ITL p99 2.00× shorter,"
        " Session p50 2.00× shorter (one pair of runs)."
    )


def test_the_sentence_says_so_where_the_first_is_slower() -> None:
    """With the range over rounds."""
    (said,) = sentences(
        columns([paced("ours", 4), paced("peer", 2), paced("ours", 3, 1), paced("peer", 2, 1)])
    )
    assert said.startswith("ours is slower than peer: 0.58× (0.50–0.67) the output tokens/s,")
    assert "TTFT p95 1.75× (1.50–2.00) as long" in said
    assert said.endswith("(median and range of 2 paired rounds).")


def test_the_sentence_claims_no_difference_that_rounds_contradict() -> None:
    """Faster in one round, slower in the next."""
    (said,) = sentences(
        columns([paced("ours", 1), paced("peer", 2), paced("ours", 2, 1), paced("peer", 1, 1)])
    )
    assert said.startswith("No clear difference between ours and peer")


def test_the_sentence_does_not_hide_failures() -> None:
    """Latencies of survivors look good."""
    failed = request(1, 0.0, outcome=Outcome.CUT)
    peer = run(request(0, 0.0, 1.0, 2.0), failed, target="peer", ended_at=2.0, steady_until=2.0)
    (said,) = sentences(columns([paced("ours", 2), peer]))
    assert said.endswith("peer failed 1 of 2 counted requests; its latencies are of the others.")


def test_a_target_that_answers_nothing_is_no_peer() -> None:
    """There is nothing to divide by, and the sentence gives the reason."""
    dead = run(request(0, 0.0, outcome=Outcome.CONNECT_FAILED), target="peer")
    (said,) = sentences(columns([paced("ours", 1), dead]))
    assert said == ("ours against peer: nothing to compare. peer answered none of 1 counted requests.")


def test_void_runs_have_no_verdict() -> None:
    """Neither in a comparison nor alone."""
    (said,) = sentences(columns([paced("ours", 1, generator=VOID), paced("peer", 2)]))
    assert said == "ours against peer: no verdict, every run of ours is void."
    (alone,) = sentences(columns([paced("ours", 1, generator=VOID)]))
    assert alone.startswith("ours (the load generator was late: read tails as upper bounds): ")


# --- the tables


def test_one_run_is_reported_in_full() -> None:
    """Its latencies, rates and counts, and which requests they are of."""
    text = printed([paced("ours", 0.5)])
    assert rows(text, "TTFT") == [["TTFT", "ours", *["500 ms"] * 5]]
    assert rows(text, "Output tokens/s")[0][1] == "2.00"
    assert rows(text, "Requests sent")[0][1] == "1"
    assert "1 of 1 requests count: agents" in text
    assert "Refused and failed" not in text


def test_several_targets_stand_side_by_side_with_ratios() -> None:
    """A column a target, and one a pair."""
    text = printed([paced("ours", 1), paced("peer", 2)])
    assert rows(text, "Output tokens/s") == [["Output tokens/s ↑", "1.00", "0.50", "2.00×"]]
    assert rows(text, "")[3][:3] == ["", "ours / peer", "0.50×"]


@pytest.mark.parametrize(
    ("outcome", "status", "shown"),
    [
        (Outcome.CONNECT_FAILED, None, "connect_failed"),
        (Outcome.HTTP_ERROR, 500, "http_error 500"),
        (Outcome.TIMED_OUT, 200, "timed_out"),
        (Outcome.CUT, 200, "cut"),
        (Outcome.STREAM_ERROR, 200, "stream_error"),
        (Outcome.REFUSED, 503, "refused 503"),
    ],
)
def test_a_broken_target_is_plain_to_see(outcome: Outcome, status: int | None, shown: str) -> None:
    """By kind, with counts and the target's error, brackets included."""
    failed = [request(n, 1.0, outcome=outcome, status=status, detail="no [bold]way[/]") for n in range(3)]
    text = printed([run(*failed, request(3, 1.0, 2.0))])
    assert "Refused and failed" in text
    assert rows(text, shown) == [[shown, "ours", "agents", "3 of 4", "no [bold]way[/]"]]


def test_void_and_interrupted_runs_are_marked() -> None:
    """Before any table."""
    text = printed([run(request(0, 0.0, 1.0), generator=VOID, interrupted=True)])
    first_table = text.index("Latencies")
    assert text.index("GENERATOR LATE: ours, round 0: the generator was late") < first_table
    assert text.index("INTERRUPTED: ours, round 0, after 10.0 s") < first_table


def test_each_bound_that_voids_a_run_is_named() -> None:
    """With its value; a run within both is not void."""
    busy = "the load generator used 97% of its core (bound 90%)"
    assert void(0.97, 0.156) == f"{busy} and was late by 0.156 s at p99 (bound 0.1 s)"
    assert (void(0.9, 0.1), void(0.97, 0.1)) == (None, busy)


def test_few_samples_are_said_before_their_percentiles() -> None:
    """In the mean not one of 19 requests is beyond the p95; one of 20 is."""
    asked = [request(n, 0.1 * n, 0.1 * n + 1.0) for n in range(20)]
    few, enough = printed([run(*asked[1:])]), printed([run(*asked)])
    assert few.index("FEW SAMPLES: ours: 19 of the requests counted; a p95 takes 20") < few.index("Latencies")
    assert "FEW SAMPLES" not in enough


def test_populations_and_the_servers_own_metrics_have_tables() -> None:
    """If there is more than one population, and if something was scraped."""
    text = printed([simulated()])
    assert "By population" in text
    assert "Generated tokens" in text
    assert "By population" not in printed([simulated(long_prompt=False)])


def test_a_population_s_table_shows_what_a_long_prompt_does_to_the_others() -> None:
    """Their median gap, and the largest one, while it is read."""
    streams = request(0, 0.0, 0.8, 0.9, 1.0, 1.8, 1.9, population="streams")
    text = printed([run(streams, request(1, 1.05, 2.0, population="book"))])
    (row,) = rows(text, "streams")
    assert [row[4], row[6]] == ["100 ms", "800 ms"]


def test_formulas_are_printed_on_request() -> None:
    """Each once."""
    text = " ".join(printed([paced("ours", 1)], width=400, formulas=True).split())
    assert text.count("(last delta − first delta) / (output tokens − 1)") == 1
    assert "numpy's default" in text


def test_two_scenarios_are_two_reports() -> None:
    """`report A.json B.json` of different scenarios compares nothing."""
    text = printed([paced("ours", 1), run(request(0, 0.0, 1.0), scenario="soak", target="peer")])
    assert "╭─ agents" in text
    assert "╭─ soak" in text
    assert "ours / peer" not in text


def test_an_empty_run_prints() -> None:
    """Interrupted before its first request."""
    assert "nothing was answered" in printed([run(ended_at=0.0, steady_until=0.0)])
