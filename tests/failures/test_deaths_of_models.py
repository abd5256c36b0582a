"""kill -9 of a real engine process in mid-stream, for each kind of cache that mlx-lm's models have: every
stream goes on with the tokens that mlx-lm gives its request alone.

A few kinds here; with `ZOO=whole`, as in `make zoo`, all of them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from loadtests.processes import processes
from scheduler.config import EngineConfig
from scheduler.events import Finished
from scheduler.link import messages
from scheduler.link.process import ProcessLauncher
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.preparation import Preparation
from scheduler.request import GenerationRequest, Sampling, TokenPrompt
from tests.cancellation.bench import Client
from tests.contracts.journal import GREEDY, request
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.engine.mlx.zoo.alone import Alone, Answer, difference
from tests.scheduler.engine.mlx.zoo.census import write
from tests.scheduler.engine.mlx.zoo.check import words
from tests.scheduler.engine.mlx.zoo.kinds import KINDS
from tests.scheduler.engine.mlx.zoo.tiny import VOCABULARY

_SAMPLE = ("gpt_oss", "qwen3_next", "llama4")
"""Windows, recurrent states and one row at a time; other tests of deaths have keys and values only."""
_KINDS = tuple(KINDS) if os.environ.get("ZOO") == "whole" else _SAMPLE
_ANSWER_TOKENS = 64
_KILLED_AT_TOKENS = 80
"""Of all answers together: few of all."""
_PREFIX = words(70, 900)


def _asked(number: int) -> GenerationRequest:
    """Every second one greedy, the others with seeds; half of them behind one prefix."""
    prompt = (_PREFIX if number % 4 < 2 else []) + words(3 + 11 * number, number)
    sampling = Sampling(temperature=0.8, seed=number) if number % 2 else Sampling(temperature=0.0)
    return GenerationRequest(
        f"cmpl-{number}", TokenPrompt(tuple(prompt)), sampling, _ANSWER_TOKENS, top_logprobs=0
    )


def _expected(alone: Alone, asked: GenerationRequest) -> Answer:
    assert isinstance(asked.prompt, TokenPrompt)
    sampling = messages.Sampling(temperature=asked.sampling.temperature, seed=asked.sampling.seed or 0)
    return alone.answer(
        request(
            0,
            list(asked.prompt.token_ids),
            _ANSWER_TOKENS,
            sampling=sampling if asked.sampling.temperature else GREEDY,
        )
    )


def _heard(client: Client) -> Answer:
    chosen = [entry.chosen for entry in client.logprobs]
    return Answer([token.token_id for token in chosen], [token.logprob for token in chosen])


def _engine_pid() -> int:
    mine = (process for process in processes() if process.parent == os.getpid())
    (pid,) = [process.pid for process in mine if "scheduler.engine" in process.command]
    return pid


async def _killed(folder: Path, clients: list[Client]) -> float:
    """Let them all be answered by an engine that is killed in between. Return how many were resumed."""
    model = ModelFolder(folder, vocabulary=VOCABULARY, context_tokens=4096, eos_token_ids=frozenset({EOS}))
    scheduler = make_scheduler(
        ProcessLauncher({**os.environ, "PYTHONPATH": os.getcwd()}, stop_seconds=10.0),
        preparation=Preparation(ByteTokenizer(), model),
        folder=model,
        engine=EngineConfig("mlx", folder, max_slots=8, prefill_chunk_tokens=24, weights_dtype="float32"),
    )
    async with running(scheduler) as nursery:
        engine = _engine_pid()
        async with trio.open_nursery() as following:
            for client in clients:
                following.start_soon(client.follow, scheduler)
            while sum(len(client.logprobs) for client in clients) < _KILLED_AT_TOKENS:  # noqa: ASYNC110
                await trio.sleep(0.002)  # Another process: nothing here is told of its tokens.
            os.kill(engine, signal.SIGKILL)
        nursery.cancel_scope.cancel()
    resumed = scheduler.metrics.registry.get_sample_value("penstock_resumed_requests_total", {})
    return resumed or 0.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", _KINDS)
def test_killed_in_mid_stream_each_goes_on_with_its_own_tokens(name: str, tmp_path: Path) -> None:
    """Six streams, greedy and with seeds, alone and behind a prefix that the next engine does not know."""
    alone = Alone(write(name, tmp_path))
    clients = [Client(_asked(number)) for number in range(6)]
    resumed = trio.run(_killed, tmp_path, clients)
    assert resumed == len(clients), "some were not on board"
    for client in clients:
        (final,) = client.finals
        assert isinstance(final, Finished), final
        assert final.usage.output_tokens == _ANSWER_TOKENS
        wrong = difference(_heard(client), _expected(alone, client.request))
        assert wrong is None, (client.request.public_id, wrong)
