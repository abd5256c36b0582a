"""Sessions whose prompts have grown long: what a turn with little new in it costs the server's own process.

The engine is the scripted one, which computes nothing: what is measured is the way of a prompt through the
parent, from the body's bytes to the engine's link, and how long its event loop is busy meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx
import trio

from loadtests.chaos.victim import victim
from loadtests.conversations import Conversation, text_of, words_per_token_of
from loadtests.fuzz.prober import Prober
from loadtests.percentiles import percentile
from loadtests.processes import children, cpu_seconds, main_thread_cpu_seconds, resident_bytes

_SYSTEM_SHARE = 0.1
"""Of the system prompt in the whole prompt, which all sessions have in common."""
_LONG_LOOP_SECONDS = 0.010
"""The bound on the event loop's 99th percentile."""


@dataclass(frozen=True, slots=True)
class SessionsPlan:
    sessions: int
    tokens: int
    new_tokens: int
    turns: int
    """Of each session, after the first."""
    clients: int
    """Turns in flight at a time."""
    seed: int = 0
    calls: bool = False
    """Whether the past is calls of a tool and their results, as an agent's is; otherwise questions and
    answers."""


@dataclass(frozen=True, slots=True)
class LongSessions:
    """`cold` is each session's first turn, `warm` the later ones. Processor time is the parent's and its
    threads'; loop times are of probes, without the time for which the machine had no core for them."""

    prompt_tokens: int
    """Of the last turn."""
    cold_cpu_seconds: float
    warm_cpu_seconds: float
    engine_cpu_seconds: float
    """Of the scripted engine's process, for each warm turn."""
    warm_turns_per_second: float
    warm_turn_seconds: dict[str, float]
    loop_seconds: dict[str, float]
    resident_bytes: int
    loop_cpu_seconds: float = 0.0
    """Of a warm turn, the part of the thread with the event loop. 0 without /proc."""
    pieces: dict[str, int] = field(default_factory=dict)
    """`prompt_pieces` of `/v1/scheduler`; empty for a server without them."""

    @property
    def ratio(self) -> float:
        return self.cold_cpu_seconds / self.warm_cpu_seconds if self.warm_cpu_seconds else 0.0

    @property
    def turns_per_core_second(self) -> float:
        """The bound on one server's own process: what its Python can do while it has one core's time."""
        return 1 / self.warm_cpu_seconds if self.warm_cpu_seconds else 0.0


def _conversation(plan: SessionsPlan, number: int, words_per_token: float, system: str) -> Conversation:
    words = round(plan.tokens * (1 - _SYSTEM_SHARE) * words_per_token)
    new_words = round(plan.new_tokens * words_per_token)
    return Conversation(random.Random(f"{plan.seed} {number}"), system, words, new_words, plan.calls)


async def run(plan: SessionsPlan) -> LongSessions:
    """Raise LaunchError if the server does not start."""
    arguments = ("--engine", "scripted", "--max-slots", str(max(8, plan.clients)), "--log-level", "warning")
    limits = httpx.Limits(max_connections=None)
    async with (
        victim(arguments, sabotage=False) as server,
        httpx.AsyncClient(timeout=3600.0, limits=limits, trust_env=False) as http,
    ):
        words_per_token = await words_per_token_of(http, server.url)
        system_words = round(plan.tokens * _SYSTEM_SHARE * words_per_token)
        system = text_of(random.Random(plan.seed), system_words)
        sessions = [_conversation(plan, number, words_per_token, system) for number in range(plan.sessions)]
        parent, (engine,) = server.process.pid, children(server.process.pid)
        began = cpu_seconds(parent)
        await _turn_of_each(plan, http, server.url, sessions)
        cold = (cpu_seconds(parent) - began) / len(sessions)
        port = urlsplit(server.url).port
        assert port is not None
        prober = Prober(port, parent)
        try:
            prober.silence()
            parents, engines, seconds = cpu_seconds(parent), cpu_seconds(engine), list[float]()
            loop_thread = main_thread_cpu_seconds(parent)
            started, tokens = trio.current_time(), 0
            for _ in range(plan.turns):
                for session in sessions:
                    session.grow()
                taken, tokens = await _turn_of_each(plan, http, server.url, sessions)
                seconds += taken
            turns = plan.turns * len(sessions)
            took = trio.current_time() - started
            warm = (cpu_seconds(parent) - parents) / turns
            engines = (cpu_seconds(engine) - engines) / turns
            loop_thread = (main_thread_cpu_seconds(parent) - loop_thread) / turns
            loop = prober.silence()
        finally:
            prober.close()
        report = (await http.get(f"{server.url}/v1/scheduler")).json()
        return LongSessions(
            tokens,
            cold,
            warm,
            engines,
            turns / took,
            _quantiles(seconds),
            _quantiles(loop.each_seconds),
            resident_bytes(parent),
            loop_thread,
            report.get("prompt_pieces", {}),
        )


async def _turn_of_each(
    plan: SessionsPlan, http: httpx.AsyncClient, url: str, sessions: Sequence[Conversation]
) -> tuple[list[float], int]:
    """Return how long each turn took, and the tokens of the last prompt."""
    seconds, tokens, slots = list[float](), 0, trio.CapacityLimiter(plan.clients)

    async def turn(session: Conversation) -> None:
        nonlocal tokens
        async with slots:
            body = session.body(max_tokens=4, temperature=0)
            sent = trio.current_time()
            headers = {"content-type": "application/json"}
            answer = await http.post(f"{url}/v1/chat/completions", content=body, headers=headers)
            answer.raise_for_status()
            seconds.append(trio.current_time() - sent)
            usage: dict[str, Any] = answer.json()["usage"]
            tokens = int(usage["prompt_tokens"])

    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(turn, session)
    return seconds, tokens


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{share:g}": percentile(ordered, share / 100) for share in (50, 99)}


def lines(found: LongSessions) -> Iterator[str]:
    cold, warm, engine = (
        1000 * one for one in (found.cold_cpu_seconds, found.warm_cpu_seconds, found.engine_cpu_seconds)
    )
    yield f"prompt of {found.prompt_tokens} tokens: {cold:.1f} ms of processor time cold, {warm:.1f} ms warm"
    yield f"{found.ratio:.1f} times less; the engine's process {engine:.1f} ms"
    if found.loop_cpu_seconds:
        yield f"event loop {1000 * found.loop_cpu_seconds:.1f} ms of them, the rest in worker threads"
    yield f"one core of the parent: {found.turns_per_core_second:.0f} warm turns/s"
    turn = ", ".join(f"{name} {1000 * one:.0f} ms" for name, one in found.warm_turn_seconds.items())
    yield f"warm turns {found.warm_turns_per_second:.1f}/s, each {turn}"
    loop = ", ".join(f"{name} {1000 * one:.1f} ms" for name, one in found.loop_seconds.items())
    yield f"event loop {loop} (at most {1000 * _LONG_LOOP_SECONDS:.0f} ms at p99)"
    kept = found.pieces.get("held_bytes", 0) / (1 << 20)
    yield f"server {found.resident_bytes / (1 << 20):.0f} MiB, {kept:.1f} of it token ids"


@click.command("long-sessions")
@click.option("--sessions", default=32, show_default=True, help="Conversations behind one system prompt.")
@click.option("--tokens", default=100_000, show_default=True, help="Of each one's prompt.")
@click.option("--new-tokens", default=1000, show_default=True, help="In a later turn.")
@click.option("--turns", default=5, show_default=True, help="Of each session, after its first.")
@click.option("--clients", default=8, show_default=True, help="Turns at a time.")
@click.option("--calls", is_flag=True, help="A past of tool calls and results, not questions and answers.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)
def long_sessions(
    sessions: int, tokens: int, new_tokens: int, turns: int, clients: int, calls: bool, out: Path
) -> None:
    """Measure what long prompts cost the server's own process: exit 1 if its event loop is held up."""
    found = trio.run(run, SessionsPlan(sessions, tokens, new_tokens, turns, clients, calls=calls))
    for line in lines(found):
        click.echo(line)
    out.mkdir(parents=True, exist_ok=True)
    (out / "long-sessions.json").write_text(json.dumps(asdict(found), indent=2) + os.linesep)
    sys.exit(int(found.loop_seconds["p99"] > _LONG_LOOP_SECONDS))
