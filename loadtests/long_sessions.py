"""Sessions whose prompts have grown long: what a turn with little new in it costs the server.

The scripted engine computes nothing, so this measures the way of a prompt through the server, from the body's
bytes to the engine's link, and how long its event loop is busy meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import httpx
import trio

from loadtests.chaos.victim import victim
from loadtests.conversations import Conversation, text_of, words_per_token_of
from loadtests.fuzz.prober import Prober
from loadtests.percentiles import percentile
from loadtests.processes import (
    children,
    cpu_seconds,
    main_thread_cpu_seconds,
    resident_bytes,
)

_SYSTEM_SHARE = 0.1
"""The system prompt's share of the whole prompt, which all sessions have in common."""
_ANSWER: Final = {"max_tokens": 4, "temperature": 0}
_HEADERS = {"content-type": "application/json"}
_IDLE_SECONDS = 3.0
"""Long enough to measure what a probe costs: the kernel counts processor time in hundredths of a second."""
_LONG_LOOP_SECONDS = 0.010
"""The bound on the 99th percentile of the event loop's times, as probes see them."""


@dataclass(frozen=True, slots=True)
class SessionsPlan:
    sessions: int
    tokens: int
    new_tokens: int
    turns: int
    """Turns of each session, after the first."""
    clients: int
    """Turns in flight at a time."""
    seed: int = 0
    calls: bool = False
    """Whether the past is calls of a tool and their results, as an agent's is; otherwise questions and
    answers."""

    @property
    def server_arguments(self) -> tuple[str, ...]:
        # There is room for all sessions: without it most of each prompt is computed again, and every chunk is
        # a step.
        engine = ("--engine", "scripted", "--kv-cache-bytes", "64GiB")
        return (*engine, "--max-slots", str(max(8, self.clients)), "--log-level", "warning")


@dataclass(frozen=True, slots=True)
class Turn:
    seconds: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class LongSessions:
    """`cold` is each session's first turn, `warm` the later ones. Processor time is the server's and its
    threads'; loop times are of probes, without the time for which the machine had no core for them."""

    prompt_tokens: int
    """Prompt tokens of the last turn."""
    cold_cpu_seconds: float
    warm_cpu_seconds: float
    engine_cpu_seconds: float
    """CPU time of the engine's process, for each warm turn."""
    warm_turns_per_second: float
    warm_turn_seconds: dict[str, float]
    loop_seconds: dict[str, float]
    resident_bytes: int
    loop_cpu_seconds: float = 0.0
    """CPU time of a warm turn in the thread with the event loop. 0 without /proc."""
    pieces: dict[str, int] = field(default_factory=dict)
    """`prompt_pieces` of `/v1/scheduler`; empty for a server without them."""
    cached_share: float = 0.0
    """The cached share of the warm turns' prompt tokens."""

    @property
    def ratio(self) -> float:
        """Return how many times the processor time of a warm turn a cold one takes."""
        return self.cold_cpu_seconds / self.warm_cpu_seconds if self.warm_cpu_seconds else 0.0

    @property
    def turns_per_core_second(self) -> float:
        """Return how many warm turns a second the server's process can take with one core, the bound on its
        Python."""
        return 1 / self.warm_cpu_seconds if self.warm_cpu_seconds else 0.0


def _conversation(plan: SessionsPlan, number: int, words_per_token: float, system: str) -> Conversation:
    words = round(plan.tokens * (1 - _SYSTEM_SHARE) * words_per_token)
    new_words = round(plan.new_tokens * words_per_token)
    return Conversation(random.Random(f"{plan.seed} {number}"), system, words, new_words, plan.calls)


async def run(plan: SessionsPlan) -> LongSessions:
    """Carry out the plan on a new server. Raise LaunchError if it does not start."""
    limits = httpx.Limits(max_connections=None)
    async with (
        victim(plan.server_arguments, sabotage=False) as server,
        httpx.AsyncClient(timeout=3600.0, limits=limits, trust_env=False) as http,
    ):
        words_per_token = await words_per_token_of(http, server.url)
        system_words = round(plan.tokens * _SYSTEM_SHARE * words_per_token)
        system = text_of(random.Random(plan.seed), system_words)
        sessions = [_conversation(plan, number, words_per_token, system) for number in range(plan.sessions)]
        server_pid = server.process.pid
        (engine,) = children(server_pid)
        before = cpu_seconds(server_pid)
        await _ask_all(http, server.url, sessions, plan.clients)
        cold = (cpu_seconds(server_pid) - before) / len(sessions)
        port = urlsplit(server.url).port
        assert port is not None
        prober = Prober(port, server_pid)
        try:
            probe_seconds = await _cost_of_a_probe(prober, server_pid)
            servers, engines, later = cpu_seconds(server_pid), cpu_seconds(engine), list[Turn]()
            loop_thread = main_thread_cpu_seconds(server_pid)
            started = trio.current_time()
            for _ in range(plan.turns):
                for session in sessions:
                    session.grow()
                later += await _ask_all(http, server.url, sessions, plan.clients)
            turns = plan.turns * len(sessions)
            took = trio.current_time() - started
            servers, engines = cpu_seconds(server_pid) - servers, cpu_seconds(engine) - engines
            loop_thread = main_thread_cpu_seconds(server_pid) - loop_thread
            loop = prober.silence()
            probing = loop.probes * probe_seconds
            warm, engines = max(0.0, servers - probing) / turns, engines / turns
            loop_thread = max(0.0, loop_thread - probing) / turns
        finally:
            prober.close()
        report = (await http.get(f"{server.url}/v1/scheduler")).json()
        resident = resident_bytes(server_pid)
        return LongSessions(
            later[-1].prompt_tokens,
            cold,
            warm,
            engines,
            turns / took,
            _quantiles([turn.seconds for turn in later]),
            _quantiles(loop.each_seconds),
            resident,
            loop_thread,
            report.get("prompt_pieces", {}),
            sum(turn.cached_tokens for turn in later) / sum(turn.prompt_tokens for turn in later),
        )


async def _ask_all(
    http: httpx.AsyncClient, url: str, sessions: Sequence[Conversation], clients: int
) -> list[Turn]:
    """Ask the next turn of each session. Raise httpx.HTTPStatusError."""
    slots, turns = trio.CapacityLimiter(clients), list[Turn]()

    async def turn(body: dict[str, Any]) -> None:
        async with slots:
            content, sent = json.dumps(body).encode(), trio.current_time()
            answer = await http.post(f"{url}/v1/chat/completions", content=content, headers=_HEADERS)
            answer.raise_for_status()
            usage = answer.json()["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            turns.append(Turn(trio.current_time() - sent, usage["prompt_tokens"], cached))

    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(turn, session.body(**_ANSWER))
    return turns


async def _cost_of_a_probe(prober: Prober, server_pid: int) -> float:
    """Return the server's processor time for an answer to the prober, while it does nothing else."""
    prober.silence()
    before = cpu_seconds(server_pid)
    await trio.sleep(_IDLE_SECONDS)
    taken = cpu_seconds(server_pid) - before
    return taken / max(1, prober.silence().probes)


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
    yield f"one core of the server: {found.turns_per_core_second:.0f} warm turns/s"
    yield f"warm turns {found.warm_turns_per_second:.1f}/s, each {_milliseconds(found.warm_turn_seconds)}"
    yield f"{found.cached_share:.1%} of the warm prompts cached"
    loop = ", ".join(f"{name} {1000 * one:.1f} ms" for name, one in found.loop_seconds.items())
    yield f"event loop {loop} (at most {1000 * _LONG_LOOP_SECONDS:.0f} ms at p99)"
    kept = found.pieces.get("held_bytes", 0) / (1 << 20)
    yield f"server {found.resident_bytes / (1 << 20):.0f} MiB, {kept:.1f} of it token ids"


def _milliseconds(quantiles: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {1000 * one:.0f} ms" for name, one in quantiles.items())


@click.command("long-sessions")
@click.option("--sessions", default=32, show_default=True, help="Conversations behind one system prompt.")
@click.option("--tokens", default=100_000, show_default=True, help="Tokens of each one's prompt.")
@click.option("--new-tokens", default=1000, show_default=True, help="New tokens in a later turn.")
@click.option("--turns", default=5, show_default=True, help="Turns of each session, after its first.")
@click.option("--clients", default=8, show_default=True, help="Turns at a time.")
@click.option("--calls", is_flag=True, help="A past of tool calls and results, not questions and answers.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)
def long_sessions(
    sessions: int,
    tokens: int,
    new_tokens: int,
    turns: int,
    clients: int,
    calls: bool,
    out: Path,
) -> None:
    """Measure what long prompts cost: exit 1 if the server's event loop is held up."""
    found = trio.run(run, SessionsPlan(sessions, tokens, new_tokens, turns, clients, calls=calls))
    for line in lines(found):
        click.echo(line)
    out.mkdir(parents=True, exist_ok=True)
    (out / "long-sessions.json").write_text(json.dumps(asdict(found), indent=2) + os.linesep)
    sys.exit(int(found.loop_seconds["p99"] > _LONG_LOOP_SECONDS))
