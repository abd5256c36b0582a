"""`penstock bench MODEL`: a self-test of about 20 seconds on a server of its own.

It measures the TTFT of a prompt, and tokens a second of one stream and of eight. The speed of each part sets
the length of the next, so that a slow machine is not measured for minutes.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import httpx
import trio
from rich.console import Console

from api.cli.answer import Answer
from api.cli.asking import PATIENCE, ask
from api.cli.errors import OperatorError
from api.cli.models.disk_models import DiskModel
from api.cli.models.listing import weights_text
from api.cli.models.reading import find_one, folders_option
from api.cli.running_server import RunningServer, client
from api.cli.started_server import ServerStart, started

STREAMS = 8
_WARM_TOKENS = 8
_PROMPT_WORDS = 160
"""About 500 tokens."""
_PROMPT_TIMES = 3
_PROMPT_SECONDS = 4.0
"""A prompt whose first token took longer is the last one."""
_PACED_SECONDS = 4.0
_ENOUGH = 0.7
"""The part of those seconds that is enough; if the answers were shorter, a further round follows."""
_FEWEST_TOKENS, _MOST_TOKENS = 16, 1024
_GROWTH = 4
"""Growth from round to round: a speed that is measured for a moment may be wrong."""
_OF_CONTEXT = 4
"""Divisor: an answer takes a quarter of the context at most."""
_MOST_SECONDS, _MOST_PACED_SECONDS = 60.0, 10.0
"""Bounds on a request, at which it is cut; the tokens received until then count."""
_PERCENTILE = 99


@dataclass(frozen=True, slots=True)
class Streams:
    """The figures of streams that ran together. `gap_p99_ms` is between two tokens of a stream."""

    streams: int
    tokens: int
    seconds: float
    gap_p99_ms: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def beside(self, later: Streams) -> Streams:
        """Return the figures of both, the worse gap of the two."""
        gap = max(self.gap_p99_ms, later.gap_p99_ms)
        return Streams(self.streams, self.tokens + later.tokens, self.seconds + later.seconds, gap)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """`ttft_seconds`: the median of some prompts of `prompt_tokens` tokens, none of them cached."""

    model: str
    weights: str
    prompt_tokens: int
    ttft_seconds: float
    alone: Streams
    together: Streams

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        for name, streams in (("alone", self.alone), ("together", self.together)):
            found[name]["tokens_per_second"] = round(streams.tokens_per_second, 2)
        return found

    @property
    def figure(self) -> str:
        """Return the result as one line."""
        return (
            f"{self.model} ({self.weights}): first token after {self.ttft_seconds:.2f} s,"
            f" {_rate(self.alone)} tokens/s alone,"
            f" {_rate(self.together)} with {self.together.streams} streams"
        )

    @property
    def table(self) -> list[str]:
        prefill = self.prompt_tokens / self.ttft_seconds if self.ttft_seconds > 0 else 0.0
        rows = [
            ("", "tokens", "seconds", "tokens/s", "p99 gap"),
            ("prompt", f"{self.prompt_tokens}", f"{self.ttft_seconds:.2f}", f"{prefill:.0f}", ""),
            *(
                (name, f"{one.tokens}", f"{one.seconds:.2f}", _rate(one), f"{one.gap_p99_ms:.0f} ms")
                for name, one in (("1 stream", self.alone), (f"{STREAMS} streams", self.together))
            ),
        ]
        return ["{:<12}{:>8}{:>10}{:>11}{:>10}".format(*row).rstrip() for row in rows]


def _rate(streams: Streams) -> str:
    rate = streams.tokens_per_second
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


@click.command("bench", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.argument("serve_options", nargs=-1, metavar="[-- SERVE OPTIONS]")
@folders_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def self_test(model: str, serve_options: tuple[str, ...], folders: tuple[Path, ...], as_json: bool) -> None:
    """Self-test of a model: starts a server with it, measures for about 20 seconds, and stops it.

    MODEL is a name that `penstock models` lists, or a folder. For load tests of any server see
    `penstock bench --help`.
    """
    try:
        found = find_one(model, folders)
    except OperatorError as error:
        raise OperatorError(f"{error};\nnor is it a command of `penstock bench`: see its --help") from error
    refuse(found)
    arguments = ("--model", found.name if found.source in ("own", "embedded") else str(found.folder))
    # Self-tests of different days must be comparable: only options given here count, not the environment's.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    start = ServerStart((*arguments, *serve_options), None, plain)
    console = Console(stderr=True)
    with started(start, console) as server, console.status("measuring"):
        result = trio.run(partial(measure, server, found))
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
        return
    click.echo(result.figure)
    for line in result.table:
        click.echo(f"  {line}")


def refuse(model: DiskModel) -> None:
    """Raise OperatorError for what has no streams to measure."""
    if not model.is_model:
        raise OperatorError(f"{model.name} cannot be served: {model.reason}")
    if model.task != "chat" or not model.chat_template:
        what = "has no chat template" if model.task == "chat" else f"is for {model.task}"
        raise OperatorError(f"{model.name} {what}: the self-test measures chats")


async def measure(
    server: RunningServer, model: DiskModel, transport: httpx.AsyncBaseTransport | None = None
) -> SelfTest:
    """Measure a server that has no other requests. Raise OperatorError if a request fails."""
    async with client(server.address, PATIENCE, transport) as http:
        streams = _Client(http, server)
        # The first request after a start pays for what is compiled and paged in.
        await streams.run(1, _WARM_TOKENS, words=4)
        prompts = [(await streams.run(1, 1, _PROMPT_WORDS))[0]]
        while len(prompts) < _PROMPT_TIMES and _ttft(prompts[-1]) < _PROMPT_SECONDS:
            prompts += await streams.run(1, 1, _PROMPT_WORDS)
        most_tokens = max(1, model.context_tokens // _OF_CONTEXT)
        alone = await streams.paced(1, 0.0, most_tokens)
        together = await streams.paced(STREAMS, alone.tokens_per_second, most_tokens)
    return SelfTest(
        model.name,
        weights_text(model),
        max(0 if one.usage is None else one.usage.prompt_tokens for one in prompts),
        statistics.median(map(_ttft, prompts)),
        alone,
        together,
    )


def tokens_for(tokens_per_second: float, seconds: float) -> int:
    """Return how many tokens a stream must have to take about this many seconds, within bounds."""
    return max(_FEWEST_TOKENS, min(_MOST_TOKENS, int(tokens_per_second * seconds)))


def streams_of(answers: Sequence[Answer]) -> Streams:
    """Return the figures of streams that were sent together, from the first request to the last token.

    Their prompts are short. Not from the first token on: a client that gets no processor then reads a second
    of tokens at once, and finds the server a hundred times as fast. Tokens are the server's count.
    """
    first = min(one.sent_at for one in answers)
    last = max(one.stamps[-1] for one in answers)
    tokens = sum(len(one.stamps) if one.usage is None else one.usage.output_tokens for one in answers)
    gaps = sorted(after - before for one in answers for before, after in pairwise(one.stamps))
    p99 = gaps[min(len(gaps) - 1, len(gaps) * _PERCENTILE // 100)] if gaps else 0.0
    return Streams(len(answers), tokens, last - first, p99 * 1000)


def _ttft(answer: Answer) -> float:
    return answer.stamps[0] - answer.sent_at


@dataclass(frozen=True, slots=True)
class _Client:
    http: httpx.AsyncClient
    server: RunningServer

    async def paced(self, streams: int, tokens_per_second: float, most_tokens: int) -> Streams:
        """Return the figures of some seconds of streams. `tokens_per_second` is the estimated rate of all
        together, 0 if unknown."""
        found, most = Streams(streams, 0, 0.0, 0.0), _FEWEST_TOKENS * _GROWTH
        end = trio.current_time() + _MOST_PACED_SECONDS
        while found.seconds < _ENOUGH * _PACED_SECONDS and trio.current_time() < end:
            each = tokens_for(tokens_per_second / streams, _PACED_SECONDS - found.seconds)
            ended = await self.run(streams, min(most_tokens, most, each), 4, _MOST_PACED_SECONDS)
            found, most = found.beside(streams_of(ended)), most * _GROWTH
            tokens_per_second = found.tokens_per_second
        return found

    async def run(
        self, streams: int, tokens: int, words: int, seconds: float = _MOST_SECONDS
    ) -> list[Answer]:
        """Send this many requests at once, each with a prompt that is not cached. Cut them after `seconds`,
        and count what was received. Raise OperatorError."""
        found = [Answer(trio.current_time()) for _ in range(streams)]
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for one in found:
                    nursery.start_soon(
                        ask, self.http, self.server.address, _body(tokens, words), one, _nothing
                    )
        for one in found:
            if one.failure is not None or not one.stamps:
                raise OperatorError(f"the server failed in the self-test: {one.failure or 'no token came'}")
        return found


def _body(tokens: int, words: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": _prompt(words)}],
        "max_tokens": tokens,
        # Not `ignore_eos`: after its end a model writes marks that no delta shows.
        "min_tokens": tokens,
        "temperature": 0,
        "stream": True,
        # Usage comes with each delta, so that a stream cut by the clock has a count, too.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _nothing() -> None:
    """Ignore the change: the figures are taken when all have ended."""


def _prompt(words: int) -> str:
    """Return a prompt whose first word is random, so that no prefix is cached."""
    numbers = " ".join(str(secrets.randbelow(1000)) for _ in range(words))
    return f"{secrets.token_hex(4)}: tell a long story with these numbers: {numbers}"
