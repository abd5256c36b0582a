"""kill -9 of a real engine process in mid-stream, for each kind of cache that mlx-lm's models have: every
stream goes on with the tokens that mlx-lm gives its request alone.

A few kinds here; with `ZOO=whole`, as in `make zoo`, all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

import scheduler
from scheduler.config import EngineConfig
from scheduler.events import Finished
from scheduler.processes.process import ProcessLauncher
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.preparation import Preparation
from scheduler.request import GenerationRequest, Sampling, TokenPrompt
from scheduler.shared import messages
from tests.cancellation.bench import Client
from tests.contracts.journal import GREEDY, request
from tests.examples import sampled
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.samples import sample
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.engine.mlx.zoo.alone import Alone, Answer, difference
from tests.scheduler.engine.mlx.zoo.census import SMALL, write
from tests.scheduler.engine.mlx.zoo.engine import words
from tests.scheduler.engine.mlx.zoo.kinds import KINDS
from tests.scheduler.engine.mlx.zoo.tiny import VOCABULARY

_SAMPLE = ("gpt_oss", "qwen3_next", "minimax_m3_vl")
"""Windows, recurrent states and one row at a time; other tests of deaths have keys and values only."""
_KINDS = tuple(KINDS) if os.environ.get("ZOO") == "whole" else sampled(_SAMPLE, ["qwen3_next"])
_REQUESTS = 6
_ANSWER_TOKENS = 24
_ON_START = """
import os, signal, sys
if "scheduler.engine" in sys.orig_argv:
    from scheduler.engine.loop import EngineLoop
    turn = EngineLoop.iterate
    def deadly(loop, commands):
        frames = turn(loop, commands)
        rows = list(loop._slots)
        if len(rows) == {rows} and all(row.generated_tokens >= 4 for row in rows):
            if not os.path.exists({marker!r}):
                open({marker!r}, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return frames
    EngineLoop.iterate = deadly
"""
"""For the first engine: dead once all are on board and have tokens, of which the last are not sent. A kill
from outside would come too late on a busy machine."""
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
    return Answer([entry.ids[0] for entry in client.logprobs], [entry.values[0] for entry in client.logprobs])


async def _killed(folder: Path, clients: list[Client]) -> float:
    """Let them all be answered by an engine that is killed in between. Return how many were resumed."""
    source = _ON_START.format(rows=_REQUESTS, marker=str(folder / "killed"))
    (folder / "sitecustomize.py").write_text(source)
    path = os.pathsep.join([str(folder), str(Path(scheduler.__file__).parents[1])])
    model = ModelFolder(folder, vocabulary=VOCABULARY, context_tokens=4096, eos_token_ids=frozenset({EOS}))
    service = make_scheduler(
        ProcessLauncher({**os.environ, "PYTHONPATH": path}, stop_seconds=10.0),
        preparation=Preparation(ByteTokenizer(), model),
        folder=model,
        engine=EngineConfig(
            "mlx", str(folder), max_slots=8, prefill_chunk_tokens=24, weights_dtype="float32"
        ),
    )
    async with running(service), trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.follow, service)
    return sample(service.metrics.registry, "penstock_resumed_requests_total")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", _KINDS)
def test_killed_in_mid_stream_each_goes_on_with_its_own_tokens(name: str, tmp_path: Path) -> None:
    """Six streams, greedy and with seeds, alone and behind a prefix that the next engine does not know."""
    alone = Alone(write(name, tmp_path, **(SMALL if name == "qwen3_next" else {})))
    clients = [Client(_asked(number)) for number in range(_REQUESTS)]
    resumed = trio.run(_killed, tmp_path, clients)
    assert resumed == _REQUESTS
    for client in clients:
        (final,) = client.finals
        assert isinstance(final, Finished), final
        assert final.usage.output_tokens == _ANSWER_TOKENS
        wrong = difference(_heard(client), _expected(alone, client.request))
        assert wrong is None, (client.request.public_id, wrong)
