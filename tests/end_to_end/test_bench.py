"""`penstock bench` from the command line, against a real server with the scripted engine."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from loadtests import record
from loadtests.record import Outcome
from tests.end_to_end.preloaded import run_penstock
from tests.end_to_end.serving import Served, eventually

_CLIENTS = 4
COMPARE = ("bench", "compare", "--scenario", "throughput", "--set", "warm_up_seconds=0")
CLIENTS = ("--set", f"clients.arrivals.clients={_CLIENTS}")
SMALL = ("--set", "bounds.seconds=0.5", "--set", "clients.output={least=8,most=8}", *CLIENTS)


def test_a_comparison_takes_turns_and_gives_equal_prompts(scripted: Served, tmp_path: Path) -> None:
    """A B A B; within a round both get the same prompts, in the next round both get new ones. Penstock's
    counters grow by exactly what the clients received."""
    ours = ("--target", f"a=preset:penstock:{scripted.url}", "--target", f"b={scripted.url},knows=all")
    done = run_penstock(*COMPARE, "--rounds", "2", "--out", str(tmp_path), *ours, *SMALL, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "throughput" in done.stdout
    runs = record.load(tmp_path / "throughput.json")
    assert [(run.target, run.round) for run in runs] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert runs[0].salt == runs[1].salt != runs[2].salt == runs[3].salt
    for run in runs:
        assert {request.outcome for request in run.requests} == {Outcome.OK}
        assert {request.output_tokens for request in run.requests} == {8}
        assert all(len(request.stamps) <= 8 for request in run.requests)
    first, last = runs[0].server[0].samples, runs[0].server[-1].samples
    (name,) = (one for one in first if one.startswith("penstock_generated_tokens_total{"))
    # The engine is one token ahead of a row that ends: never less than what was received.
    assert last[name] - first[name] == sum(request.output_tokens or 0 for request in runs[0].requests)


def _answers(served: Served) -> float:
    """Return how many requests have ended in the server."""
    outcomes = ("stop", "length")
    return sum(served.metric("penstock_requests_total", f'outcome="{outcome}"') for outcome in outcomes)


def test_ctrl_c_still_writes_what_was_measured(scripted: Served, tmp_path: Path) -> None:
    """The records say that they were interrupted."""
    command = (*COMPARE, "--out", str(tmp_path), "--target", f"ours={scripted.url},knows=all")
    process = subprocess.Popen(
        [sys.executable, "-m", "api", *command, "--set", "bounds.seconds=60", *CLIENTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        # Each client sends its next request after its answer. After more answers than clients (and the trial
        # request), one of them has been received, and not only sent.
        enough = _answers(scripted) + _CLIENTS + 2
        eventually(lambda: _answers(scripted) >= enough, 60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    (run,) = record.load(tmp_path / "throughput.json")
    assert run.interrupted
    assert any(request.outcome is Outcome.OK for request in run.requests)
    assert "INTERRUPTED" in output
