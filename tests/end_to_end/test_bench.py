"""`penstock bench` from the command line, against a real server with the scripted engine."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from loadtests import record
from loadtests.record import Outcome
from tests.end_to_end.preloaded import run_penstock
from tests.end_to_end.serving import Served, eventually

SMALL = (
    "--set",
    "bounds.seconds=0.5",
    "--set",
    "warm_up_seconds=0",
    "--set",
    "clients.arrivals.clients=4",
    "--set",
    "clients.output={least=8,most=8}",
)

_CLIENTS = 4


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_penstock("bench", *arguments, timeout=100)


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "api", "bench", *arguments]


@pytest.fixture(scope="module")
def measured(scripted: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small comparison: the same server under two names."""
    out = tmp_path_factory.mktemp("bench")
    done = bench(
        *("compare", "--scenario", "throughput", "--rounds", "2", "--out", str(out)),
        *("--target", f"a={scripted.url},knows=all", "--target", f"b={scripted.url},knows=all"),
        *SMALL,
    )
    assert done.returncode == 0, done.stderr
    assert "throughput" in done.stdout
    # These tests do not depend on a spare core for the load generator.
    runs = record.load(out / "throughput.json")
    well = record.GeneratorHealth(cpu_share=0.1, lag_p99_seconds=0.0)
    record.save(out / "throughput.json", [msgspec.structs.replace(run, generator=well) for run in runs])
    return out


def test_a_comparison_takes_turns_and_gives_equal_prompts(measured: Path) -> None:
    """A B A B; within a round both get the same prompts, in the next round both get new ones."""
    runs = record.load(measured / "throughput.json")
    assert [(run.target, run.round) for run in runs] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert runs[0].salt == runs[1].salt != runs[2].salt == runs[3].salt
    for run in runs:
        assert {request.outcome for request in run.requests} == {Outcome.OK}
        assert {request.output_tokens for request in run.requests} == {8}
        assert all(len(request.stamps) <= 8 for request in run.requests)


def test_the_servers_own_metrics_agree_with_the_clients(scripted: Served, tmp_path: Path) -> None:
    """Penstock's counters grow by exactly what the clients received."""
    done = bench(
        *("compare", "--scenario", "throughput", "--out", str(tmp_path)),
        *("--target", f"ours=preset:penstock:{scripted.url}", *SMALL),
    )
    assert done.returncode == 0, done.stderr
    (run,) = record.load(tmp_path / "throughput.json")
    first, last = run.server[0].samples, run.server[-1].samples
    (name,) = (one for one in first if one.startswith("penstock_generated_tokens_total{"))
    received = sum(request.output_tokens or 0 for request in run.requests)
    # The engine is one token ahead of a row that ends: never less than what was received.
    assert last[name] - first[name] == received


def _answers(served: Served) -> float:
    """Return how many requests have ended in the server."""
    outcomes = ("stop", "length")
    return sum(served.metric("penstock_requests_total", f'outcome="{outcome}"') for outcome in outcomes)


def test_ctrl_c_still_writes_what_was_measured(scripted: Served, tmp_path: Path) -> None:
    """The records say that they were interrupted."""
    process = subprocess.Popen(
        command(
            [
                *("compare", "--scenario", "throughput", "--out", str(tmp_path)),
                *("--target", f"ours={scripted.url},knows=all", "--set", "bounds.seconds=60"),
                *("--set", "warm_up_seconds=0", "--set", f"clients.arrivals.clients={_CLIENTS}"),
            ]
        ),
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
