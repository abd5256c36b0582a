"""Runs for tests, request by request."""

from __future__ import annotations

from typing import Any

from loadtests.record import GeneratorHealth, Outcome, RequestRecord, RunRecord

HEALTHY = GeneratorHealth(cpu_share=0.12, lag_p99_seconds=0.004)


def request(index: int, sent_at: float, *stamps: float, **changes: Any) -> RequestRecord:
    """Return a request with one token a delta, which ends with its last."""
    fields: dict[str, Any] = {
        "index": index,
        "population": "agents",
        "tenant": "default",
        "session": f"s{index}",
        "turn": 1,
        "scheduled_at": sent_at,
        "sent_at": sent_at,
        "stamps": stamps,
        "ended_at": stamps[-1] if stamps else sent_at,
        "outcome": Outcome.OK,
        "output_tokens": len(stamps),
    }
    return RequestRecord(**fields | changes)


def run(*requests: RequestRecord, **changes: Any) -> RunRecord:
    """Return a run of ten seconds, all of them measured."""
    fields: dict[str, Any] = {
        "target": "ours",
        "url": "http://127.0.0.1:8000",
        "model": "tiny",
        "scenario": "agents",
        "description": "Agents at work.",
        "settings": {"bounds": '{"seconds":10}'},
        "salt": "salt-1",
        "started": "2026-01-02T03:04:05+00:00",
        "warm_up_seconds": 0.0,
        "steady_until": 10.0,
        "ended_at": 10.0,
        "interrupted": False,
        "ttft_slo_seconds": 1.0,
        "tpot_slo_seconds": 0.1,
        "requests": requests,
        "generator": HEALTHY,
    }
    return RunRecord(**fields | changes)
