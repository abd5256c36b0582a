"""The cost of HTTP, two processes and streaming: Penstock against a bare BatchGenerator loop.

`penstock bench ceiling`: the 13M bench model, 32 requests of 64 tokens, the same prompts to both, in turn (A
B A B ...) on the same machine with the same BLAS. It prints tokens per second and the ratio pair by pair;
only ratios are meaningful on a shared machine. `--against blas-off` compares Penstock with its fast BLAS to
Penstock without.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio

from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt

_TEXT = "the sluice gate opens and the water runs down to the mill where nobody waits for it"
_WORDS = _TEXT.split(" ")


def texts(count: int, words: int, salt: int) -> list[str]:
    """Return prompts of different lengths without a common prefix."""
    return [
        " ".join([f"{salt}-{i}"] + [_WORDS[(i * 7 + k) % len(_WORDS)] for k in range(words + i)])
        for i in range(count)
    ]


@contextmanager
def bare_loop(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "loadtests.bare_loop", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        json.loads(process.stdout.readline())
        yield process
        process.stdin.close()


@contextmanager
def penstock(folder: Path, arguments: list[str]) -> Iterator[int]:
    """Yield the port of a server that is ready."""
    command = [sys.executable, "-m", "api", "serve", "--model", str(folder), "--port", "0", *arguments]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--log-level", "warning"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # `serve` refuses PENSTOCK_ variables that it does not know, such as the peers' folders.
            env={
                "PYTHONUNBUFFERED": "1",
                **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            },
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"listening +http://[^ ]*:(\d+)", line):
                    yield int(found[1])
                    break
            else:
                log.seek(0)
                raise RuntimeError(f"the server did not start: {log.read()[-2000:]}")
        finally:
            process.terminate()
            process.wait(20)


def run_bare(process: subprocess.Popen[str], prompts: list[list[int]], tokens: int) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": tokens}) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    assert answer["tokens"] == len(prompts) * tokens
    return float(answer["tokens"] / answer["seconds"])


async def run_http(port: int, prompts: list[str], tokens: int) -> float:
    """Run the prompts, each over its own connection, read as bytes so that the client costs almost
    nothing."""
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

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for text in prompts:
            nursery.start_soon(one, text)
    seconds = time.perf_counter() - started
    assert done == [tokens] * len(prompts)
    return sum(done) / seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="penstock bench ceiling", description=__doc__)
    parser.add_argument("--against", choices=["bare", "blas-off"], default="bare")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=20, help="length of the shortest prompt")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    cache = user_cache_folder(os.environ)
    folder = ensure_model(BENCH_13M, "bench-13m", cache)
    blas = prepare("auto", cache)
    print(f"blas: {blas.name}")
    tokenizer = HubTokenizer(folder)
    slots = ["--max-slots", str(max(32, options.requests))]
    with ExitStack() as stack:
        ours = http_runner(stack.enter_context(penstock(folder, slots)), options.tokens)
        if options.against == "bare":
            process = stack.enter_context(bare_loop(folder, blas.environment(os.environ)))
            other = bare_runner(process, tokenizer, options.tokens)
        else:
            other = http_runner(
                stack.enter_context(penstock(folder, [*slots, "--blas", "off"])), options.tokens
            )
        compare(ours, other, options.against, options.rounds, options.requests, options.words)


Runner = Callable[[list[str]], float]
"""Runs prompts and returns tokens per second."""


def http_runner(port: int, tokens: int) -> Runner:
    return lambda prompts: trio.run(run_http, port, prompts, tokens)


def bare_runner(process: subprocess.Popen[str], tokenizer: HubTokenizer, tokens: int) -> Runner:
    def run(prompts: list[str]) -> float:
        rendered = [tokenizer.render(ChatPrompt(({"role": "user", "content": text},))) for text in prompts]
        return run_bare(process, [tokenizer.encode(text) for text in rendered], tokens)

    return run


def compare(ours: Runner, other: Runner, name: str, rounds: int, requests: int, words: int) -> None:
    ratios: list[float] = []
    for number in range(rounds + 1):
        prompts = texts(requests, words, number)
        a, b = ours(prompts), other(prompts)
        if number == 0:
            continue  # Warm-up: both compile kernels for the shapes.
        ratios.append(a / b)
        print(
            f"round {number}: Penstock {a:.0f} tokens/s, {name} {b:.0f}, ratio {ratios[-1]:.2f}", flush=True
        )
    print(f"ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
