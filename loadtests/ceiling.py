"""The cost of HTTP, two processes and streaming: Penstock against a bare BatchGenerator loop.

The 13M bench model and the same prompts for both, in turn (A B A B ...) on the same machine with the same
BLAS. Only the ratios, pair by pair, mean something on a shared machine.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import click
import trio

from loadtests.asked_process import Answer, Question, asked_process
from loadtests.launch import SLOTS, Bench, with_server
from loadtests.presets import PRESETS
from loadtests.targets import Launch, Target
from scheduler.engine.mlx.cpu.fast_blas import default_threads, prepare
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt

_TEXT = "the sluice gate opens and the water runs down to the mill where nobody waits for it"


@click.command()
@click.option("--requests", default=32, show_default=True, help="Requests at once.")
@click.option("--tokens", default=64, show_default=True, help="Tokens of each answer.")
@click.option("--words", default=20, show_default=True, help="Words of the shortest prompt.")
@click.option("--rounds", default=5, show_default=True, help="How often each is measured, in turn.")
def ceiling(requests: int, tokens: int, words: int, rounds: int) -> None:
    """Compare Penstock with a bare BatchGenerator loop on the same prompts: the cost of serving."""
    cache = user_cache_folder(os.environ)
    folder, blas = ensure_model(BENCH_13M, "bench-13m", cache), prepare("auto", cache)
    environment = {"OPENBLAS_NUM_THREADS": str(default_threads())} | blas.environment(os.environ)
    tokenizer = HubTokenizer(folder)

    async def measured(target: Target) -> None:
        ratios: list[float] = []
        for number in range(rounds + 1):
            prompts = _texts(requests, words, number)
            ours = await _through_http(target.url, prompts, tokens)
            rendered = [tokenizer.render(ChatPrompt(({"role": "user", "content": one},))) for one in prompts]
            bare = await trio.to_thread.run_sync(
                _alone, ask, [tokenizer.encode(text) for text in rendered], tokens
            )
            if number == 0:
                continue  # Warm-up: both compile kernels for the shapes.
            ratios.append(ours / bare)
            click.echo(
                f"round {number}: Penstock {ours:.0f} tokens/s, bare {bare:.0f}, ratio {ratios[-1]:.2f}"
            )
        click.echo(f"ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")

    bench = Bench(folder, blas, max(SLOTS, requests))
    with asked_process("loadtests.bare_loop", (str(folder),), environment) as ask:
        trio.run(partial(with_server, Launch("penstock", PRESETS["penstock"]), bench, measured))


def _texts(count: int, words: int, salt: int) -> list[str]:
    """Return prompts of different lengths without a common prefix."""
    known = _TEXT.split(" ")
    return [
        " ".join([f"{salt}-{i}"] + [known[(i * 7 + k) % len(known)] for k in range(words + i)])
        for i in range(count)
    ]


def _alone(ask: Callable[[Question], Answer], prompts: Sequence[Sequence[int]], tokens: int) -> float:
    """Return the tokens/s of the bare loop."""
    answer = ask({"prompts": prompts, "max_tokens": tokens})
    assert answer["tokens"] == len(prompts) * tokens
    return float(answer["tokens"] / answer["seconds"])


async def _through_http(url: str, prompts: Sequence[str], tokens: int) -> float:
    """Return the tokens/s of the server. Each prompt has a connection of its own, read as bytes so that the
    client costs almost nothing."""
    port = urlsplit(url).port
    assert port is not None
    done: list[int] = []

    async def one(text: str) -> None:
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            seen = b""
            while b"data: [DONE]" not in seen[-64:]:
                data = await stream.receive_some()
                assert data, f"the stream was cut: {seen[-300:]!r}"
                seen += data
        usage = re.search(rb'"completion_tokens":(\d+)', seen)
        assert usage, seen[-300:]
        done.append(int(usage[1]))

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for text in prompts:
            nursery.start_soon(one, text)
    seconds = trio.current_time() - started
    assert done == [tokens] * len(prompts)
    return sum(done) / seconds
