"""Runs for tests: by hand, request by request, or simulated from a seed."""

from __future__ import annotations

import random
from typing import Any

from loadtests.record import GeneratorHealth, Outcome, RequestRecord, RunRecord, ServerSample

HEALTHY = GeneratorHealth(cpu_share=0.12, lag_p50_seconds=0.0002, lag_p99_seconds=0.004)


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
        "settings": {"bounds": '{"seconds":10}', "machine": "2 cores, Linux"},
        "salt": "salt-1",
        "seed": 1,
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


def simulated(
    target: str = "ours",
    round_: int = 0,
    pace: float = 1.0,
    sessions: int = 24,
    turns: int = 5,
    failing: float = 0.0,
    long_prompt: bool = True,
    **changes: Any,
) -> RunRecord:
    """Return sessions of some turns and, in the middle, one very long prompt that slows every stream; `pace`
    2 is twice as slow."""
    rng = random.Random(f"{target}/{round_}")
    long_at, long_wait = 20.0, 3.0 * pace
    requests: list[RequestRecord] = []
    for session in range(sessions):
        at = rng.uniform(0, 5)
        for turn in range(1, turns + 1):
            answered = _answered(rng, len(requests), session, turn, turns, at, pace, (long_at, long_wait))
            if rng.random() < failing:
                answered = _broken(rng, answered)
            requests.append(answered)
            if answered.outcome is not Outcome.OK:
                break
            at = answered.ended_at + rng.lognormvariate(0.3, 0.5)
    if long_prompt:
        stamps = [long_at + long_wait + 0.03 * pace * token for token in range(32)]
        requests.append(
            request(len(requests), long_at, *stamps, population="long", session="long", prompt_tokens=30_000)
        )
    requests.sort(key=lambda one: one.sent_at)
    ended_at = max(one.ended_at for one in requests)
    tokens = sum(one.output_tokens or 0 for one in requests)
    samples = (
        ServerSample(at=0.0, samples={"penstock_generated_tokens_total": 0.0}),
        ServerSample(at=ended_at, samples={"penstock_generated_tokens_total": float(tokens)}),
    )
    numbers = {"warm_up_seconds": 2.0, "steady_until": ended_at, "ended_at": ended_at, "server": samples}
    return run(*requests, target=target, round=round_, **numbers | changes)


def _answered(
    rng: random.Random,
    index: int,
    session: int,
    turn: int,
    turns: int,
    at: float,
    pace: float,
    long_prompt: tuple[float, float],
) -> RequestRecord:
    long_at, long_wait = long_prompt
    prompt = 2000 + 600 * turn
    reusable = 0.9 if turn > 1 else 0.5
    moment = at + pace * rng.lognormvariate(-1.2, 0.6) * (1 if turn > 1 else 2)
    stamps = []
    for _ in range(rng.randint(20, 60)):
        stamps.append(moment)
        gap = 0.03 * pace * rng.lognormvariate(0, 0.25)
        if long_at < moment < long_at + long_wait:
            gap *= 8
        moment += gap
    return request(
        index,
        at,
        *stamps,
        session=f"agent-{session}",
        tenant=f"tenant-{session % 3}",
        turn=turn,
        session_turns=turns,
        prompt_tokens=prompt,
        cached_tokens=int(prompt * reusable * (0.95 if pace == 1 else 0.6)),
        reusable_share=reusable,
        finish_reason="length",
    )


def _broken(rng: random.Random, answered: RequestRecord) -> RequestRecord:
    fields = {name: getattr(answered, name) for name in answered.__struct_fields__}
    outcome, status, detail = rng.choice(
        [
            (Outcome.HTTP_ERROR, 500, "Internal Server Error"),
            (Outcome.CUT, 200, "the stream ended without [DONE]"),
            (Outcome.CONNECT_FAILED, None, "connection refused"),
        ]
    )
    stamps = answered.stamps[:3] if outcome is Outcome.CUT else ()
    fields |= {"outcome": outcome, "status": status, "detail": detail, "stamps": stamps}
    return RequestRecord(
        **fields | {"output_tokens": None, "ended_at": (*stamps, answered.sent_at + 0.1)[-1]}
    )
