"""From a client's request to the answer's events, with a random model that has a whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx_lm.utils import load_model

from scheduler.answer.text_stream import Heavy
from scheduler.engine.grammars.grammars import Grammars, grammar_tokenizer
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.planning.pace import PrefillPace
from scheduler.events import AnswerPiece, FinishReason, TextDelta
from scheduler.models.random_qwen3 import Shape, write_model
from scheduler.prepared import Prepared
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest, Reasoning, Sampling
from scheduler.shared.messages import (
    Load,
    LogprobsOut,
    Retired,
    StepOutput,
    Submit,
    ToEngine,
)
from scheduler.shared.token_ids import compact
from scheduler.structure import JsonText, Structure
from tests.scheduler.answer.notations import pieces_of
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.reuse import loaded_model

SHAPE = Shape(hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, feed_forward=64, vocabulary=8192, seed=1)
SILENT = Reasoning(enabled=False)
PERSON = JsonText(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 5, "maxLength": 40},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 3, "maxItems": 6},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    },
    "response_format",
)


def asked(structure: Structure | None, seed: int, max_tokens: int = 1500, **prompt: Any) -> GenerationRequest:
    """Sampled at temperature 1, without reasoning where nothing else is said."""
    return GenerationRequest(
        f"test-{seed}",
        ChatPrompt(({"role": "user", "content": f"say {seed}"},), **{"reasoning": SILENT, **prompt}),
        sampling=Sampling(temperature=1.0, seed=seed),
        max_tokens=max_tokens,
        structure=structure,
    )


@dataclass
class Answer:
    """The output of one request."""

    prepared: Prepared
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobsOut] = field(default_factory=list)
    retired: Retired | None = None


def stopped(answer: Answer) -> bool:
    assert answer.retired is not None
    return answer.retired.reason == "stop"


class GrammarModel:
    """The model and both sides' knowledge of it, for a session of tests."""

    def __init__(self, folder: Path) -> None:
        """Make a model of random weights, which are written to `folder` if it is empty."""
        if not (folder / "config.json").exists():
            write_model(SHAPE, folder)
        tokenizer = HubTokenizer(folder)
        self.preparation = Preparation(tokenizer, inspect(folder))
        self.folder = folder
        self.model, self.config = load_model(folder)
        self.model.set_dtype(mx.float32)
        self.vocabulary = int(self.config["vocab_size"])
        self.tokenizer = grammar_tokenizer(tokenizer.for_grammars(), self.vocabulary, self.config)

    def engine(self, **changes: Any) -> GrammarEngine:
        return GrammarEngine(self, **changes)

    def backend(self, load: Load) -> MlxBackend:
        """As an engine process would make it for `load`, whose model it does not look at."""
        return MlxBackend(loaded_model(self.model, "qwen3"), load, grammars=Grammars(self.tokenizer))


class GrammarEngine:
    """One engine's loop, new for each test."""

    def __init__(self, made: GrammarModel, **changes: Any) -> None:
        self.preparation = made.preparation
        self.backend = made.backend(load_of(made.folder, **changes))
        self.loop = EngineLoop(self.backend, 32, PrefillPace(256))
        self.answers: dict[int, Answer] = {}
        self.preemptions = self.steps = 0

    def submit(self, request: GenerationRequest, done: Iterable[int] = ()) -> tuple[int, Submit]:
        """As the parent sends it; `done`: tokens of the answer from another engine."""
        prepared = self.preparation.prepare(request)
        number, said = len(self.answers) + 1, list(done)
        self.answers[number] = Answer(prepared, tokens=said[:])
        prompt = prepared.submit.prompt + compact(said)
        return number, msgspec.structs.replace(
            prepared.submit, request_id=number, prompt=prompt, done_tokens=len(said)
        )

    def iterate(self, commands: Iterable[ToEngine] = ()) -> None:
        for frame in self.loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            self.preemptions, self.steps = frame.counters.preemptions, frame.counters.steps
            for token in frame.tokens:
                answer = self.answers[token.request_id]
                answer.tokens.append(token.token)
                if token.logprobs is not None:
                    answer.logprobs.append(token.logprobs)
            for retired in frame.retired:
                self.answers[retired.request_id].retired = retired

    def run(self, *requests: GenerationRequest) -> list[Answer]:
        """Run all of them together, to their ends."""
        return self.resume((request, ()) for request in requests)

    def resume(self, begun: Iterable[tuple[GenerationRequest, Iterable[int]]]) -> list[Answer]:
        """As `run`, of requests that have these tokens of another engine."""
        made = [self.submit(request, done) for request, done in begun]
        self.iterate([submit for _, submit in made])
        while not self.loop.idle:
            self.iterate()
        return [self.answers[number] for number, _ in made]

    def pieces(self, answer: Answer) -> list[AnswerPiece]:
        """What the client gets of it."""
        assert answer.retired is not None
        (pipeline,) = answer.prepared.pipelines()
        ended = answer.retired.reason == "stop"
        reason = FinishReason.STOP if ended else FinishReason.LENGTH
        said = answer.tokens[:-1] if ended else answer.tokens
        found = pieces_of(pipeline, said, end=reason)
        return [piece for piece in found if not isinstance(piece, Heavy)]

    def text(self, answer: Answer) -> str:
        return "".join(piece.text for piece in self.pieces(answer) if isinstance(piece, TextDelta))
