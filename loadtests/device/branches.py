"""Each branch of the engine that depends on the device, on this device, against mlx-lm's own code on its CPU.

The whole engine runs a few prompts that are padded, join, and share a prefix in place, with the choices of
one kind of device forced. Then the model alone gets prompt and answer at once, on the CPU: each token must be
its best one, and each log-probability its own, within the dtype's rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model

from loadtests.device.finding import Finding, attempt
from scheduler.config import EngineConfig, load_message
from scheduler.engine.device import Traits
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx import loading
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.device import ARM, CUDA, METAL, X86, device, forced
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.planning.pace import PrefillPace
from scheduler.shared.messages import Load, Ready, Sampling, StepOutput, Submit, TokenOut
from scheduler.shared.row_bytes import RowBytes
from scheduler.shared.token_ids import compact

BRANCHES: Mapping[str, Traits] = {"metal": METAL, "cuda": CUDA, "arm": ARM, "x86": X86}
"""Traits by the device for which they are made; all of them run on any."""
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_ROUNDING = {mx.float32: 1e-4, mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}
_LAYERS_ROUNDING = 12
"""How many times one rounding of the largest logit all layers together may make
(`tests/scheduler/engine/mlx/sixteen_bit` measured 6.5)."""
_GREEDY = Sampling(temperature=0.0)
_SLOTS, _CHUNK_TOKENS, _ANSWER_TOKENS, _PREFIX_TOKENS = 8, 32, 12, 64


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in the dtype of this name."""

    name: str
    model: Any
    load: Load
    ready: Ready
    row_bytes: RowBytes

    @classmethod
    def of(cls, folder: Path, dtype: str) -> Subject:
        config = EngineConfig(
            "mlx",
            str(folder),
            max_slots=_SLOTS,
            prefill_chunk_tokens=_CHUNK_TOKENS,
            weights_dtype=dtype,  # type: ignore[arg-type]
            kv_cache_bytes=1 << 30,
            load_check="off",
        )
        backend = loading.load(load_message(config), lambda stage: None)
        model, _ = load_model(folder, lazy=True)
        model.set_dtype(DTYPES[dtype])
        mx.eval(model.parameters())
        row_bytes = backend.facts.row_bytes
        return cls(dtype, model, load_message(config), backend.describe(), row_bytes)

    @property
    def tolerance(self) -> float:
        """Return the tolerance as a part of the largest logit."""
        dtype = DTYPES[self.load.weights_dtype]
        return _LAYERS_ROUNDING * _ROUNDING[dtype]

    def backend(self) -> MlxBackend:
        loaded = LoadedModel(self.model, self.ready, self.row_bytes)
        return MlxBackend(loaded, self.load, group_cost_tokens=0, batching=Batching())


def findings(subjects: Sequence[Subject], names: Sequence[str]) -> Iterator[Finding]:
    for name in ("this device", *names):
        for subject in subjects:
            title = f"{subject.name}: branches of {name}"
            traits = BRANCHES.get(name, device().traits)
            yield attempt(title, partial(_compared, title, subject, traits))


def _compared(title: str, subject: Subject, traits: Traits) -> Finding:
    with forced(traits):
        answers = _answers(subject, _GREEDY)
        drawn = _answers(subject, Sampling(temperature=0.8, top_p=0.9, presence_penalty=0.3))
        alone = _answers(subject, Sampling(temperature=0.8, top_p=0.9, presence_penalty=0.3), together=False)
    worst, best = 0.0, 0
    for prompt, answer in answers:
        for token, logits in zip(answer, _reference(subject, prompt, answer), strict=True):
            scale = max(1.0, float(mx.max(mx.abs(logits))))
            gap = float(mx.max(logits) - logits[token.token]) / scale
            assert token.logprobs is not None
            expected = float(logits[token.token] - mx.logsumexp(logits))
            # A NaN must not be lost in a maximum.
            difference = abs(token.logprobs.chosen - expected) / scale
            worst = max([worst, gap, difference], key=lambda value: float("inf") if value != value else value)
            best += gap == 0
    positions = sum(len(answer) for _, answer in answers)
    seeded = sum(
        [one.token for one in mine] == [one.token for one in its]
        for (_, mine), (_, its) in zip(drawn, alone, strict=True)
    )
    figures = {
        "positions": positions,
        "best_tokens": best,
        "worst_difference_of_largest_logit": worst,
        "tolerance": subject.tolerance,
        "seeded_answers_as_alone": seeded,
        "seeded_answers": len(drawn),
    }
    exact = subject.load.weights_dtype == "float32"
    right = worst <= subject.tolerance and (seeded == len(drawn) or not exact)
    return Finding(title, "right" if right else "wrong", figures)


def _prompts(vocabulary: int) -> list[list[int]]:
    """Return prompts of different lengths, shorter and longer than a chunk; four begin with one prefix, and
    the first of these computes it."""

    def words(count: int, seed: int) -> list[int]:
        return [1 + (seed * 97 + 31 * at * at + 7 * at) % (min(vocabulary, 1000) - 1) for at in range(count)]

    prefix = words(_PREFIX_TOKENS, 1)
    behind = [prefix + words(count, seed) for count, seed in ((5, 2), (9, 3), (1, 4), (40, 5))]
    return [*behind, words(3, 6), words(70, 7), words(17, 8)]


Answers = list[tuple[list[int], list[TokenOut]]]


def _answers(subject: Subject, sampling: Sampling, together: bool = True) -> Answers:
    """Return the answers of a new engine: the first prompt runs for some turns before the others join, or,
    without `together`, each when the one before it has ended, without a prefix hit."""
    prompts = _prompts(subject.ready.vocabulary)
    loop = EngineLoop(subject.backend(), _SLOTS, PrefillPace(_CHUNK_TOKENS))
    answers: Answers = [(prompt, []) for prompt in prompts]

    def turn(commands: Sequence[Submit]) -> None:
        for frame in loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                answers[token.request_id][1].append(token)
            assert all(retired.reason == "length" for retired in frame.retired), frame.retired

    for number, prompt in enumerate(prompts):
        seeded = Sampling(
            sampling.temperature,
            top_p=sampling.top_p,
            presence_penalty=sampling.presence_penalty,
            seed=number,
        )
        salt = "" if together else str(number)
        turn([Submit(number, compact(prompt), _ANSWER_TOKENS, (), seeded, salt=salt, top_logprobs=1)])
        for _ in range(4 if together and not number else 0):
            turn(())
        while not together and not loop.idle:
            turn(())
    while not loop.idle:
        turn(())
    return answers


def _reference(subject: Subject, prompt: Sequence[int], answer: Sequence[TokenOut]) -> list[mx.array]:
    """Return the (vocabulary,) float32 logits before each token of the answer, by mlx-lm's model alone on the
    CPU."""
    tokens = [*prompt, *(one.token for one in answer[:-1])]
    with forced(CUDA), mx.stream(mx.cpu):  # CUDA's branches leave everything that they can to MLX.
        logits = subject.model(mx.array([tokens]))[0, len(prompt) - 1 :].astype(mx.float32)
        mx.eval(logits)
        return list(logits)
