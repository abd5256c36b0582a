"""The same tokens as mlx-lm alone gives, in float32, on a real model: in one batch whose requests come one
after another, behind cold and warm prefixes, in chunks of odd sizes, after a killed engine, over two engines,
with a full KV cache, and in packed weights.

Random weights lead by wide margins or by none; this model's tokens lead as real ones do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from api.smollm2.model import NAME as SERVED_NAME
from scheduler.config import EngineConfig
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.events import Finished
from scheduler.processes.process import ProcessLauncher
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import GenerationRequest, Sampling, TokenPrompt
from scheduler.shared import messages
from scheduler.shared.messages import Submit
from scheduler.shared.user_cache import user_cache_folder
from tests.cancellation.bench import Client
from tests.contracts.journal import GREEDY, request
from tests.end_to_end.serving import Served, serving
from tests.fakes.samples import sample
from tests.fakes.scheduling import make_scheduler, running
from tests.real_model.alone import WINDOW, ScoredAnswer, answers
from tests.real_model.prompts import page, prompts, spread
from tests.real_model.test_meaning import post
from tests.repo.tree import ROOT
from tests.scheduler.engine.mlx.zoo.alone import difference, rounding

pytestmark = pytest.mark.timeout(3600)  # Two busy cores prefill tens of tokens a second.
LOGPROB = 1e-4
"""How far a log-probability may be from mlx-lm's."""
TEMPERATURE = 0.8
_TOKENS_BEFORE_DEATH = 5
_ON_START = """
import os, signal, sys
if "scheduler.engine" in sys.orig_argv:
    from scheduler.engine.loop import EngineLoop
    turn = EngineLoop.iterate
    def deadly(loop, commands):
        frames = turn(loop, commands)
        # Also those of rows that have ended: with drafts one may end in a single step.
        if loop._meter.totals.generated_tokens >= {tokens} and not os.path.exists({marker!r}):
            open({marker!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return frames
    EngineLoop.iterate = deadly
"""
"""For the first engine: dead in the middle of its streams, the last tokens not sent."""


@dataclass(frozen=True)
class Work:
    """How many prompts there are, how long the longest and each answer is. `grown_tokens`: the answer of
    every eighth, longer than what a row's admission reserves; 0: as the others. `scored`: the prompts'
    log-probabilities are compared too, for which an engine takes no cached prefix."""

    prompts: int
    longest: int
    answer_tokens: int
    grown_tokens: int = 0
    scored: bool = False

    @property
    def kv_bytes(self) -> int:
        """Room for the longest prompt with its answer and half as much again, of 45 KiB a token."""
        return int(1.5 * (self.longest + max(self.answer_tokens, self.grown_tokens)) * 45 * 1024)


@dataclass(frozen=True)
class Scene:
    engine: Mapping[str, Any] = field(default_factory=dict)
    engines: int = 1
    gap_seconds: float = 0.02
    """Between two arrivals."""
    twice: bool = False
    """Asked again behind its own prefixes, as many at a time as have a slot: a step in which 32 rows join is
    counted as if each were padded to the longest, and for that much the engine evicts what no row leases."""
    dies: bool = False
    full: bool = False
    scored: bool = False

    @property
    def packed(self) -> bool:
        return self.engine.get("weights_dtype") == "packed"

    @property
    def work(self) -> Work:
        return FULL if self.full else PACKED if self.packed else SCORED if self.scored else WHOLE


SCENES = {
    "batch": Scene(scored=True),
    "warm": Scene(twice=True, gap_seconds=0.0),
    "odd chunks": Scene({"prefill_chunk_tokens": 37, "prefill_rows": 3}),
    "killed": Scene(dies=True, gap_seconds=0.0),
    "pool": Scene(engines=2),
    "full": Scene(full=True, gap_seconds=0.0),
    "killed in odd chunks": Scene({"prefill_chunk_tokens": 37}, gap_seconds=0.0, dies=True),
    "packed": Scene({"weights_dtype": "packed"}),
}
SAMPLE = Work(prompts=4, longest=60, answer_tokens=6, scored=True)
SCORED = replace(SAMPLE, prompts=16, longest=WINDOW)
WHOLE = Work(prompts=64, longest=6000, answer_tokens=24)
FULL = replace(WHOLE, grown_tokens=600)
PACKED = replace(WHOLE, longest=300)
"""Two cores read the prompts of the others in hours: a packed one takes 20 times as long."""


@cache
def _tokenizer(folder: Path) -> HubTokenizer:
    return HubTokenizer(folder)


def asked_of(folder: Path, work: Work) -> list[GenerationRequest]:
    """Every prompt once, every second one with a seed, of each kind of prompt half of them."""
    found = []
    made = prompts(_tokenizer(folder).encode, spread(work.prompts, work.longest))
    for number, tokens in enumerate(made):
        limit = work.answer_tokens if number % 8 else work.grown_tokens or work.answer_tokens
        seeded = Sampling(temperature=TEMPERATURE, seed=number)
        sampling = seeded if (number + number // 4) % 2 else Sampling(0.0)
        asked = GenerationRequest(f"cmpl-{number}", TokenPrompt(tuple(tokens)), sampling, limit)
        scores = 0 if work.scored else None
        found.append(replace(asked, top_logprobs=0, prompt_logprobs=scores, ignore_eos=True))
    return found


def _submit(number: int, asked: GenerationRequest) -> Submit:
    assert isinstance(asked.prompt, TokenPrompt)
    assert asked.max_tokens is not None
    seeded = messages.Sampling(temperature=asked.sampling.temperature or 0.0, seed=asked.sampling.seed or 0)
    sampling = seeded if asked.sampling.temperature else GREEDY
    return request(number, list(asked.prompt.token_ids), asked.max_tokens, sampling=sampling)


@cache
def expected(folder: Path, work: Work, packed: bool) -> list[ScoredAnswer]:
    """mlx-lm's, made once for all scenes with weights of the same type."""
    submits = [_submit(number, one) for number, one in enumerate(asked_of(folder, work))]
    return answers(folder, submits, packed, work.scored)


async def _play(
    scene: Scene, folder: Path, work: Work, made: Path, engine: Mapping[str, Any]
) -> tuple[list[Client], dict[str, float]]:
    """Return each request's last client, and what the scheduler counted."""
    path = str(ROOT)
    if scene.dies:
        dead_at = _TOKENS_BEFORE_DEATH * work.prompts // 2
        source = _ON_START.format(tokens=dead_at, marker=str(made / "killed"))
        (made / "sitecustomize.py").write_text(source)
        path = os.pathsep.join([str(made), path])
    blas = prepare(user_cache_folder(os.environ))
    # The check at load runs an engine loop too, in which the first engine would die.
    config = EngineConfig("mlx", str(folder), load_check="off", **{**scene.engine, **engine})
    if scene.full:
        config = structs.replace(config, kv_cache_bytes=work.kv_bytes)
    service = make_scheduler(
        lambda number: ProcessLauncher(
            blas.environment({**os.environ, "PYTHONPATH": path}), stop_seconds=10.0
        ),
        preparation=Preparation(_tokenizer(folder), inspect(folder)),
        folder=inspect(folder),
        engine=config,
        engines=scene.engines,
        stall_seconds=600.0,
    )
    clients: list[Client] = []
    asked = asked_of(folder, work)
    together = config.max_slots if scene.twice else len(asked)
    async with running(service):
        for start in range(0, len(asked), together):
            for _ in range(1 + scene.twice):
                coming = [Client(one) for one in asked[start : start + together]]
                async with trio.open_nursery() as nursery:
                    for client in coming:
                        nursery.start_soon(client.follow, service)
                        await trio.sleep(scene.gap_seconds)
            clients += coming
        registry = service.metrics.registry
        names = ("penstock_resumed_requests_total", "penstock_preemptions_total")
        return clients, {name: sample(registry, name) for name in names}


def play(name: str, folder: Path, work: Work, made: Path, **engine: Any) -> list[ScoredAnswer]:
    """Return all answers of a scene, in which happened what it is for."""
    scene = SCENES[name]
    clients, counted = trio.run(partial(_play, scene, folder, work, made, engine))
    assert (counted["penstock_resumed_requests_total"] > 0) == scene.dies
    assert counted["penstock_preemptions_total"] > 0 or not scene.full
    found = []
    for client in clients:
        (final,) = client.finals
        assert isinstance(final, Finished), final
        assert final.usage.cached_tokens == final.usage.prompt_tokens - 1 or not scene.twice
        prompt = [] if final.prompt is None else [one.logprobs for one in final.prompt()][1:]
        found.append(
            ScoredAnswer(
                [one.ids[0] for one in client.logprobs],
                [one.values[0] for one in client.logprobs],
                prompt=[one.values[0] for one in prompt if one is not None],
            )
        )
    return found


_CASES = [
    pytest.param("killed in odd chunks", SAMPLE, id="sample"),
    *(
        pytest.param(name, scene.work, id=f"{name}-whole", marks=pytest.mark.long)
        for name, scene in SCENES.items()
    ),
]


@pytest.mark.parametrize(("name", "work"), _CASES)
def test_each_has_the_tokens_that_mlx_lm_gives_it_alone(
    name: str, work: Work, folder: Path, tmp_path: Path
) -> None:
    """Greedy and with seeds; in some scenes the prompts' log-probabilities too. Tolerance: a token within a
    thousandth of a tie; log-probabilities 1e-4."""
    found = play(name, folder, work, tmp_path)
    alone = expected(folder, work, SCENES[name].packed)
    for number, (ours, theirs) in enumerate(zip(found, alone, strict=True)):
        assert difference(ours, theirs) is None, (number, difference(ours, theirs))
        assert rounding(ours, theirs) <= LOGPROB, number
        assert (len(theirs.prompt) > 10) == work.scored
        assert _furthest(ours.prompt, theirs.prompt) <= LOGPROB, number


def _furthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max((abs(one - other) for one, other in zip(ours, theirs, strict=True)), default=0.0)


def _logprobs(served: Served, text: list[int]) -> list[float]:
    """Return that of each token but each window's first."""
    found: list[float] = []
    for start in range(0, len(text), WINDOW):
        window = text[start : start + WINDOW]
        said = post(served, "/v1/completions", prompt=window, max_tokens=0, echo=True, logprobs=0)
        found += said["choices"][0]["logprobs"]["token_logprobs"][1:]
    return found


def _perplexity(logprobs: list[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


@pytest.mark.long
@pytest.mark.parametrize(("tokens", "part"), [(80, 2e-2), (8000, 2e-3)])
def test_packed_keys_and_values_change_a_texts_perplexity_little(
    served: Served, folder: Path, tokens: int, part: float
) -> None:
    """q8 a long one's by up to 0.2 %. A prompt that comes back is answered behind what is packed of it, with
    the same words."""
    text = page(_tokenizer(folder).encode, tokens)
    options = ("--model", str(folder), "--served-model-name", SERVED_NAME, "--kv-cache-dtype", "q8")
    with serving(*options, trained=True) as packed:
        perplexity = _perplexity(_logprobs(packed, text))
        cold, warm = (
            post(packed, "/v1/completions", prompt=text[:80], max_tokens=12, temperature=0) for _ in range(2)
        )
    assert 0 < abs(perplexity / _perplexity(_logprobs(served, text)) - 1) <= part
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 79
    assert warm["choices"][0]["text"] == cold["choices"][0]["text"]
