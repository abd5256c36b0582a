"""`penstock bench dev long-sessions`: its conversations, a short run of it, and its verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from loadtests import long_sessions as bench
from loadtests.long_sessions import LongSessions, SessionsPlan, lines

FOUND = LongSessions(
    prompt_tokens=100_000,
    cold_cpu_seconds=0.18,
    warm_cpu_seconds=0.02,
    engine_cpu_seconds=0.005,
    warm_turns_per_second=17.8,
    warm_turn_seconds={"p50": 0.2, "p99": 0.26},
    loop_seconds={"p50": 0.0, "p99": 0.004},
    resident_bytes=128 << 20,
    loop_cpu_seconds=0.006,
    pieces={"held_bytes": 3 << 20},
)


def test_what_is_said() -> None:
    """Times in milliseconds, the ratio of a first turn to a later one."""
    assert list(lines(FOUND)) == [
        "prompt of 100000 tokens: 180.0 ms of processor time cold, 20.0 ms warm",
        "9.0 times less; the engine's process 5.0 ms",
        "event loop 6.0 ms of them, the rest in worker threads",
        "one core of the server: 50 warm turns/s",
        "warm turns 17.8/s, each p50 200 ms, p99 260 ms",
        "0.0% of the warm prompts cached",
        "event loop p50 0.0 ms, p99 4.0 ms (at most 10 ms at p99)",
        "server 128 MiB, 3.0 of it token ids",
    ]


def test_an_event_loop_that_is_held_up_fails_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit 1 above 10 ms at the 99th percentile."""

    def outcome(p99: float) -> int:
        async def run(plan: SessionsPlan) -> LongSessions:
            return replace(FOUND, loop_seconds={"p50": 0.0, "p99": p99})

        with monkeypatch.context() as patched:
            patched.setattr(bench, "run", run)
            return CliRunner().invoke(bench.long_sessions, ["--out", str(tmp_path)]).exit_code

    assert (outcome(0.009), outcome(0.011)) == (0, 1)


def test_a_later_turn_begins_with_the_turn_before_it() -> None:
    """Sessions differ behind the system prompt that they share."""
    plan = SessionsPlan(sessions=2, tokens=2000, new_tokens=100, turns=1, clients=1)
    assert later_roles(replace(plan, calls=True)) == ["assistant", "tool"]
    assert later_roles(plan) == ["assistant", "user"]
    one, other = (bench._conversation(plan, number, 1.0, "the system prompt") for number in (0, 1))
    first = one.body()["messages"]
    one.grow()
    later = one.body()["messages"]
    assert later[: len(first)] == first
    assert first[0] == other.body()["messages"][0]
    assert first[1] != other.body()["messages"][1]


def later_roles(plan: SessionsPlan) -> list[str]:
    session = bench._conversation(plan, 0, 1.0, "the system prompt")
    first = session.body()["messages"]
    session.grow()
    return [message["role"] for message in session.body()["messages"][len(first) :]]


def test_a_small_run_measures_both_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server: prompts of 16,000 tokens, whose second turn finds the first one's token ids."""
    monkeypatch.setattr(bench, "_IDLE_SECONDS", 0.1)
    plan = SessionsPlan(sessions=2, tokens=16_000, new_tokens=100, turns=2, clients=2)
    found = trio.run(bench.run, plan)
    assert 12_000 < found.prompt_tokens < 20_000
    assert found.cold_cpu_seconds >= 0
    assert found.pieces["kept_tokens"] > found.pieces["tokens"] // 2
    assert found.warm_turns_per_second > 0
    assert found.cached_share > 0.9
    assert set(found.loop_seconds) == {"p50", "p99"}
