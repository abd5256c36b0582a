"""Answers of the embedded model on this device and on its CPU, with all that samplers and grammars do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import msgspec

from loadtests.device.finding import Finding, attempt
from scheduler.config import EngineConfig, load_message
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx import loading
from scheduler.engine.pace import PrefillPace
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest, Reasoning, Sampling
from scheduler.shared.messages import GrammarTokenizer, StepOutput, Submit
from scheduler.structure import JsonText

_SLOTS, _CHUNK_TOKENS = 8, 64
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "count", "ok"],
    "additionalProperties": False,
}
_WAYS: dict[str, tuple[Sampling, bool]] = {
    "greedy": (Sampling(temperature=0.0), False),
    "top-p": (Sampling(temperature=0.8, top_p=0.9, seed=1), False),
    "top-k and min-p": (Sampling(temperature=1.1, top_k=20, min_p=0.02, seed=2), False),
    "penalties": (Sampling(temperature=0.0, presence_penalty=0.4, repetition_penalty=1.1), False),
    "a schema": (Sampling(temperature=0.7, seed=3), True),
}
"""How answers are drawn, and whether a grammar holds them."""


def findings(answers: int, tokens: int) -> Iterator[Finding]:
    """Give each way a fifth of the answers, all of them together in a batch."""
    tokenizer = HubTokenizer(EMBEDDED_FOLDER)
    preparation = Preparation(tokenizer, inspect(EMBEDDED_FOLDER))
    masks = tokenizer.for_grammars()
    submits = [
        _submit(preparation, number, list(_WAYS)[number % len(_WAYS)], tokens) for number in range(answers)
    ]
    here = _answered(submits, masks)
    with mx.stream(mx.cpu):
        there = _answered(submits, masks)
    for at, way in enumerate(_WAYS):
        yield attempt(way, lambda: _compared(way, here[at :: len(_WAYS)], there[at :: len(_WAYS)]))  # noqa: B023


def _submit(preparation: Preparation, number: int, way: str, tokens: int) -> Submit:
    sampling, held = _WAYS[way]
    question = f"The code of drone {number} is K{number}Q-9. What is the code of drone {number}?"
    request = GenerationRequest(
        f"answer-{number}",
        ChatPrompt(({"role": "user", "content": question},), reasoning=Reasoning(enabled=False)),
        sampling=sampling,
        max_tokens=tokens,
        structure=JsonText(_SCHEMA, "device") if held else None,
    )
    ready = preparation.prepare(request).submit
    return Submit(number, ready.prompt, tokens, ready.stop_token_ids, sampling, grammar=ready.grammar)


def _answered(submits: Sequence[Submit], masks: GrammarTokenizer) -> list[list[int]]:
    config = EngineConfig(
        "mlx",
        str(EMBEDDED_FOLDER),
        max_slots=_SLOTS,
        weights_dtype="float32",
        kv_cache_bytes=1 << 30,
        load_check="off",
    )
    load = msgspec.structs.replace(load_message(config), tokenizer=masks)
    backend = loading.load(load, lambda stage: None)
    loop = EngineLoop(backend, _SLOTS, PrefillPace(_CHUNK_TOKENS))
    answers: list[list[int]] = [[] for _ in submits]
    frames = loop.iterate(submits)
    while True:
        for frame in frames:
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                answers[token.request_id].append(token.token)
            failed = [retired for retired in frame.retired if retired.reason not in ("length", "stop")]
            assert not failed, failed
        if loop.idle:
            return answers
        frames = loop.iterate(())


def _compared(way: str, here: Sequence[list[int]], there: Sequence[list[int]]) -> Finding:
    same = sum(mine == its for mine, its in zip(here, there, strict=True))
    figures = {"answers": len(here), "as_on_the_cpu": same, "tokens": sum(map(len, here))}
    # With TF32 off, only two scores within the last bit may fall the other way.
    return Finding(way, "right" if same == len(here) and figures["tokens"] else "wrong", figures)
