"""Sessions whose prompts have grown long: what a turn with little new in it costs.

With the scripted engine, which computes nothing, this measures the way of a prompt through the server, from
the body's bytes to the engine's link, and how long its event loop is busy meanwhile. With a model it measures
all of it: the time to the first token, and whether an answer behind a cached prefix is the same as without
one.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from loadtests.processes import (
    children,
    cpu_seconds,
    main_thread_cpu_seconds,
    resident_bytes,
)
from loadtests.turns import Turn, ask_all

_SYSTEM_SHARE = 0.1
"""The system prompt's share of the whole prompt, which all sessions have in common."""
_SCRIPTED_TOKENS, _ANSWER_TOKENS = 4, 32
_CONTEXT_SHARE = 0.97
"""The share of a model's context that prompts may take: their lengths are estimates."""
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
    model: str | None = None
    """A folder, or "embedded"; None runs the scripted engine."""
    compared: int = 0
    """How many sessions' last turns are asked again where nothing of them is cached."""

    @property
    def server_arguments(self) -> tuple[str, ...]:
        engine: tuple[str, ...] = ("--model", self.model or "")
        if self.model is None:
            # There is room for all sessions: without it most of each prompt is computed again, and every
            # chunk is a step.
            engine = ("--engine", "scripted", "--kv-cache-bytes", "64GiB")
        return (*engine, "--max-slots", str(max(8, self.clients)), "--log-level", "warning")

    @property
    def answer(self) -> dict[str, Any]:
        """Return the fields that describe what is wanted of each turn."""
        if self.model is None:
            return {"max_tokens": _SCRIPTED_TOKENS, "temperature": 0}
        streamed = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
        return {"max_tokens": _ANSWER_TOKENS, "temperature": 0, **streamed}

    @property
    def most_tokens(self) -> int:
        """Return the most tokens of a prompt and its answer."""
        return self.tokens + self.turns * self.new_tokens + _ANSWER_TOKENS


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
    cold_engine_cpu_seconds: float = 0.0
    cold_ttft_seconds: dict[str, float] = field(default_factory=dict)
    warm_ttft_seconds: dict[str, float] = field(default_factory=dict)
    """Empty for the scripted engine."""
    cached_share: float = 0.0
    """The cached share of the warm turns' prompt tokens."""
    compared: int = 0
    parted: int = 0
    """Number of `compared` answers that are not the cold ones token for token."""

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
        plan = await _fitting(plan, http, server.url)
        words_per_token = await words_per_token_of(http, server.url)
        system_words = round(plan.tokens * _SYSTEM_SHARE * words_per_token)
        system = text_of(random.Random(plan.seed), system_words)
        sessions = [_conversation(plan, number, words_per_token, system) for number in range(plan.sessions)]
        server_pid = server.process.pid
        (engine,) = children(server_pid)
        before, engine_before = cpu_seconds(server_pid), cpu_seconds(engine)
        first = await ask_all(http, server.url, [one.body(**plan.answer) for one in sessions], plan.clients)
        cold = (cpu_seconds(server_pid) - before) / len(sessions)
        cold_engine = (cpu_seconds(engine) - engine_before) / len(sessions)
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
                bodies = [one.body(**plan.answer) for one in sessions]
                later += await ask_all(http, server.url, bodies, plan.clients)
            turns = plan.turns * len(sessions)
            took = trio.current_time() - started
            servers, engines = cpu_seconds(server_pid) - servers, cpu_seconds(engine) - engines
            loop_thread = main_thread_cpu_seconds(server_pid) - loop_thread
            loop = prober.silence()
            # A turn of a model takes seconds, in which a hundred probes cost more than the turn does.
            probing = loop.probes * probe_seconds
            warm, engines = max(0.0, servers - probing) / turns, engines / turns
            loop_thread = max(0.0, loop_thread - probing) / turns
        finally:
            prober.close()
        report = (await http.get(f"{server.url}/v1/scheduler")).json()
        resident = resident_bytes(server_pid)
        again = await _asked_cold(plan, http, server.url, sessions)
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
            cold_engine,
            {} if plan.model is None else _quantiles([turn.first_token_seconds for turn in first]),
            {} if plan.model is None else _quantiles([turn.first_token_seconds for turn in later]),
            sum(turn.cached_tokens for turn in later) / sum(turn.prompt_tokens for turn in later),
            len(again),
            parted(later[-len(sessions) :], again),
        )


async def _cost_of_a_probe(prober: Prober, server_pid: int) -> float:
    """Return the server's processor time for an answer to the prober, while it does nothing else."""
    prober.silence()
    before = cpu_seconds(server_pid)
    await trio.sleep(_IDLE_SECONDS)
    taken = cpu_seconds(server_pid) - before
    return taken / max(1, prober.silence().probes)


async def _fitting(plan: SessionsPlan, http: httpx.AsyncClient, url: str) -> SessionsPlan:
    """Return the plan with prompts no longer than the model's context takes, their last turn included."""
    models: dict[str, Any] = (await http.get(f"{url}/v1/models")).json()
    over = plan.most_tokens - int(_CONTEXT_SHARE * models["data"][0]["max_model_len"])
    return replace(plan, tokens=plan.tokens - over) if plan.model is not None and over > 0 else plan


async def _asked_cold(
    plan: SessionsPlan, http: httpx.AsyncClient, url: str, sessions: Sequence[Conversation]
) -> list[Turn]:
    """Ask some sessions' last turn once more, each with a salt of its own, under which nothing is cached."""
    chosen = sessions[: plan.compared]
    bodies = [one.body(**plan.answer, cache_salt=f"cold {number}") for number, one in enumerate(chosen)]
    return await ask_all(http, url, bodies, 1)


def parted(warm: Sequence[Turn], cold: Sequence[Turn]) -> int:
    """Return how many of the cold turns, in the order of the warm ones, gave other tokens than with a cache.
    A cold turn that found something cached, or has no token, counts as well: it proves nothing."""
    return sum(
        one.tokens != again.tokens or bool(again.cached_tokens) or not again.tokens
        for one, again in zip(warm, cold, strict=False)
    )


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{share:g}": percentile(ordered, share / 100) for share in (50, 99)}


def lines(found: LongSessions) -> Iterator[str]:
    cold, warm, engine = (
        1000 * one for one in (found.cold_cpu_seconds, found.warm_cpu_seconds, found.engine_cpu_seconds)
    )
    yield f"prompt of {found.prompt_tokens} tokens: {cold:.1f} ms of processor time cold, {warm:.1f} ms warm"
    cold_engine = f"{1000 * found.cold_engine_cpu_seconds:.1f} ms cold, " if found.warm_ttft_seconds else ""
    yield f"{found.ratio:.1f} times less; the engine's process {cold_engine}{engine:.1f} ms"
    if found.loop_cpu_seconds:
        yield f"event loop {1000 * found.loop_cpu_seconds:.1f} ms of them, the rest in worker threads"
    yield f"one core of the server: {found.turns_per_core_second:.0f} warm turns/s"
    yield f"warm turns {found.warm_turns_per_second:.1f}/s, each {_milliseconds(found.warm_turn_seconds)}"
    if found.warm_ttft_seconds:
        ttft = f"{_milliseconds(found.cold_ttft_seconds)} cold; {_milliseconds(found.warm_ttft_seconds)} warm"
        yield f"TTFT {ttft}"
    yield f"{found.cached_share:.1%} of the warm prompts cached"
    if found.compared:
        yield f"{found.parted} of {found.compared} answers differ from the same prompt's without a cache"
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
@click.option("--engine", type=click.Choice(["scripted", "mlx"]), default="scripted", show_default=True)
@click.option("--model", default="embedded", show_default=True, help="Folder, for --engine mlx.")
@click.option("--compare", "compared", default=1, show_default=True, help="Sessions asked cold (mlx).")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)
def long_sessions(
    sessions: int,
    tokens: int,
    new_tokens: int,
    turns: int,
    clients: int,
    calls: bool,
    engine: str,
    model: str,
    compared: int,
    out: Path,
) -> None:
    """Measure what long prompts cost: exit 1 if the server's event loop is held up, and with a model also if
    an answer behind a cached prefix is not the one without. Prompts fit the model's context."""
    plan = SessionsPlan(sessions, tokens, new_tokens, turns, clients, calls=calls)
    if engine == "mlx":
        plan = replace(plan, model=model, compared=compared)
    found = trio.run(run, plan)
    for line in lines(found):
        click.echo(line)
    out.mkdir(parents=True, exist_ok=True)
    (out / "long-sessions.json").write_text(json.dumps(asdict(found), indent=2) + os.linesep)
    sys.exit(int(found.loop_seconds["p99"] > _LONG_LOOP_SECONDS or found.parted > 0))
