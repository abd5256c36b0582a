"""Chats beside an embedder: their inter-token latency alone and while thousands of texts are embedded.

Both are models of one server, each with an engine process. The chats are a closed loop of streams; one client
embeds the texts in requests of many. Gaps are between two tokens of one stream, as the client sees them.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import click
import httpx
import trio

from loadtests.chaos.victim import victim
from loadtests.client import EventSplitter
from loadtests.percentiles import percentile
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder

MOST_TIMES_ALONE = 1.5
"""Bound on the 95th percentile of the chats' ITL beside the embedder, in multiples of that alone."""
CHATS, EMBEDDER = "chats", "texts"
"""The models' names."""
_WORDS = ("harbour", "lantern", "copper", "meadow", "signal", "orchard", "granite", "anchor")
_WARM_UP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BesidePlan:
    """`chats` streams, and `texts` of 2 to `most_words` words each, `batch` of them in a request."""

    chats: int = 8
    texts: int = 10_000
    batch: int = 500
    most_words: int = 16
    alone_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of ITL, alone and beside, and texts per second beside the chats and without them."""

    alone: dict[str, float]
    beside: dict[str, float]
    gaps: tuple[int, int]
    texts_per_second: float
    texts_per_second_alone: float
    tokens: int

    @property
    def ratio(self) -> float:
        return self.beside["p95"] / self.alone["p95"]


class _Chats:
    """Streams that continue until cancelled; `take` returns the gaps since it was last called."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = f"{url}/v1/chat/completions"
        self._gaps: list[float] = []

    def take(self) -> list[float]:
        gaps, self._gaps = self._gaps, []
        return sorted(gaps)

    async def run(self, number: int) -> None:
        chance = random.Random(number)
        for turn in count():
            content = f"{number} {turn} " + " ".join(chance.choices(_WORDS, k=16))
            body = {
                "model": CHATS,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": chance.randint(96, 192),
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            last: float | None = None
            async with self._http.stream("POST", self._url, json=body) as response:
                events = EventSplitter()
                async for data in response.aiter_raw():
                    now = trio.current_time()
                    for payload in events.feed(data):
                        if b'"content":"' not in payload:
                            continue
                        if last is not None:
                            self._gaps.append(now - last)
                        last = now


async def _embed(http: httpx.AsyncClient, url: str, texts: Sequence[str], batch: int) -> tuple[float, int]:
    """Return the seconds that all texts took, and their tokens."""
    started, tokens = trio.current_time(), 0
    for start in range(0, len(texts), batch):
        body = {"model": EMBEDDER, "input": texts[start : start + batch], "encoding_format": "base64"}
        answer = await http.post(f"{url}/v1/embeddings", json=body)
        answer.raise_for_status()
        found = answer.json()
        assert len(found["data"]) == len(texts[start : start + batch]), "an answer without all of its vectors"
        tokens += found["usage"]["total_tokens"]
    return trio.current_time() - started, tokens


def texts_of(plan: BesidePlan) -> list[str]:
    chance = random.Random(1)
    return [
        f"{number} " + " ".join(chance.choices(_WORDS, k=chance.randint(2, plan.most_words)))
        for number in range(plan.texts)
    ]


async def run(plan: BesidePlan, chat_model: Path, embedder: Path) -> Beside:
    """Carry out the plan on a new server. Raise LaunchError if it does not start."""
    texts = texts_of(plan)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models.toml"
        models.write_text(models_of(chat_model, embedder))
        return await _measure(plan, texts, models)


def models_of(chat_model: Path, embedder: Path) -> str:
    """Return the file of both models (`--models`)."""
    # JSON's strings are TOML's as well.
    return f"""[[model]]
name = {json.dumps(CHATS)}
model = {json.dumps(str(chat_model))}

[[model]]
name = {json.dumps(EMBEDDER)}
model = {json.dumps(str(embedder))}
task = "embedding"
"""


async def _measure(plan: BesidePlan, texts: Sequence[str], models: Path) -> Beside:
    limits = httpx.Limits(max_connections=None)
    async with (
        victim(("--models", str(models)), sabotage=False) as server,
        httpx.AsyncClient(timeout=3600.0, limits=limits, trust_env=False) as http,
        trio.open_nursery() as nursery,
    ):
        # The first text loads the embedder.
        await _embed(http, server.url, texts[:1], plan.batch)
        some = texts[: max(plan.batch, len(texts) // 10)]
        alone_seconds, _ = await _embed(http, server.url, some, plan.batch)
        chats = _Chats(http, server.url)
        for number in range(plan.chats):
            nursery.start_soon(chats.run, number)
        await trio.sleep(_WARM_UP_SECONDS)
        chats.take()
        await trio.sleep(plan.alone_seconds)
        alone = chats.take()
        seconds, tokens = await _embed(http, server.url, texts, plan.batch)
        beside = chats.take()
        nursery.cancel_scope.cancel()
    return Beside(
        _quantiles(alone),
        _quantiles(beside),
        (len(alone), len(beside)),
        len(texts) / seconds,
        len(some) / alone_seconds,
        tokens,
    )


def _quantiles(gaps: Sequence[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: percentile(gaps, share) for name, share in shares.items()}


def lines(found: Beside) -> Iterator[str]:
    for name, quantiles, gaps in zip(
        ("alone", "beside"), (found.alone, found.beside), found.gaps, strict=True
    ):
        each = ", ".join(f"{quantile} {1000 * seconds:.1f} ms" for quantile, seconds in quantiles.items())
        yield f"chats {name:<7} ITL {each}, of {gaps} gaps"
    yield f"p95 beside is {found.ratio:.2f} times alone (at most {MOST_TIMES_ALONE})"
    rates = f"{found.texts_per_second:.0f} beside the chats, {found.texts_per_second_alone:.0f} without them"
    yield f"texts/s {rates}; {found.tokens} tokens"


@click.command("beside-embeddings")
@click.option("--chats", default=8, show_default=True, help="Streams at a time.")
@click.option("--texts", default=10_000, show_default=True, help="Texts to embed meanwhile.")
@click.option("--batch", default=500, show_default=True, help="Texts of a request.")
@click.option("--words", default=16, show_default=True, help="Most words of a text.")
@click.option("--seconds", default=30.0, show_default=True, help="Time for which the chats are alone.")
@click.option(
    "--model", type=click.Path(path_type=Path), help="Model of the chats; by default the bench model."
)
@click.option(
    "--embedder", type=click.Path(path_type=Path), help="Model of the texts; by default the chats' model."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), show_default=True)
def beside_embeddings(
    chats: int,
    texts: int,
    batch: int,
    words: int,
    seconds: float,
    model: Path | None,
    embedder: Path | None,
    out: Path,
) -> None:
    """Measure chats' ITL alone and beside an embedder: exit 1 if it grows too much."""
    chat_model = model or ensure_model(BENCH_13M, "13m", user_cache_folder(os.environ))
    plan = BesidePlan(chats, texts, batch, words, seconds)
    found = trio.run(run, plan, chat_model, embedder or chat_model)
    for line in lines(found):
        click.echo(line)
    out.mkdir(parents=True, exist_ok=True)
    (out / "beside-embeddings.json").write_text(json.dumps(asdict(found), indent=2))
    sys.exit(int(found.ratio > MOST_TIMES_ALONE))
