"""A back end in use: requests, their output, and what must hold at every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import msgspec

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.drafts.speculation import Draft
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.planning.prefill import Chunk, share
from scheduler.engine.planning.prefill_batches import next_batch
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import LogprobsOut, Retired, Sampling, Submit
from scheduler.shared.token_ids import compact

VOCABULARY = 512
"""Prompts are made of ids below this; the back ends' vocabularies are at least as large."""

_PATIENCE_STEPS = 2000
GREEDY = Sampling(
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    seed=0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logit_bias=(),
)
SEEDED = msgspec.structs.replace(GREEDY, temperature=1.0, top_p=0.95, seed=7, presence_penalty=0.5)


def prompt_of(tokens: int, seed: int) -> list[int]:
    """Return a random prompt; equal arguments give equal prompts."""
    generator = random.Random(seed * 1_000_003 + tokens)
    return [generator.randrange(VOCABULARY) for _ in range(tokens)]


def request(
    request_id: int,
    prompt: list[int],
    max_tokens: int = 6,
    stop: tuple[int, ...] = (),
    sampling: Sampling = GREEDY,
) -> Submit:
    return Submit(request_id, compact(prompt), max_tokens, stop, sampling)


@dataclass(slots=True)
class Course:
    """The output of one request so far."""

    submit: Submit
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobsOut | None] = field(default_factory=list)
    prompt_logprobs: list[LogprobsOut] = field(default_factory=list)
    prefilled: list[int] = field(default_factory=list)
    retired: Retired | None = None


Guess: TypeAlias = Callable[[EngineSequence], Sequence[int]]
"""What a row that decodes may write next, right or wrong."""


def step_of(
    rows: Iterable[EngineSequence], chunks: tuple[Chunk, ...] = (), drafts: tuple[Draft, ...] = ()
) -> StepPlan:
    """Return the plan of a step that computes these chunks, and a token of each row whose prompt they end."""
    tokens = {chunk.request_id: chunk.tokens for chunk in chunks}
    decode = [row.request_id for row in rows if row.chunkable_tokens <= tokens.get(row.request_id, 0)]
    return StepPlan(chunks=chunks, decode=tuple(decode), drafts=drafts)


def kv_bytes(backend: Backend) -> int:
    """Return what its rows hold."""
    return backend.execute(StepPlan()).kv_bytes


def prefixes_of(backend: Backend) -> PrefixCache[Any, Any]:
    """Return the prefix cache that it has."""
    assert backend.cache is not None
    assert isinstance(backend.cache.prefixes, PrefixCache)
    return backend.cache.prefixes


class Rows:
    """A back end and the sequences that run in it, prefilled as a plan would."""

    def __init__(self, backend: Backend, guess: Guess | None = None) -> None:
        self.backend = backend
        self.guess = guess
        self.running: dict[int, EngineSequence] = {}
        self.last = StepResult()
        self._admissions = count()

    def execute(self, plan: StepPlan) -> StepResult:
        self.last = self.backend.execute(plan)
        return self.last

    def admit(self, submit: Submit, checkpoints: tuple[int, ...] = ()) -> EngineSequence:
        """Raise RequestRefused."""
        sequence = EngineSequence.of(submit)
        self.backend.check(sequence)
        sequence.checkpoints, sequence.admission = checkpoints, next(self._admissions)
        for _, why in self.execute(StepPlan(admit=(Admit(sequence),))).refused:
            raise RequestRefused(why)
        self.running[submit.request_id] = sequence
        return sequence

    def remove(self, request_id: int) -> None:
        self.execute(StepPlan(release=(request_id,)))
        del self.running[request_id]

    def step(self, budget_tokens: int = 1 << 30) -> StepResult:
        """One step, or the pending tokens if prompts wait for them to be returned."""
        rows = list(self.running.values())
        drafts = self._drafts(rows)
        if self.last.has_pending and (drafts or any(row.prefilling for row in rows)):
            result = self.execute(StepPlan(emit_pending=True))
        else:
            limits = self.backend.facts.limits
            prompts = [row for row in rows if row.chunkable_tokens]
            chunks = share(next_batch(prompts, self.last.begun, limits.rows), budget_tokens, limits)
            result = self.execute(step_of(rows, chunks, drafts))
        for retired in result.retired:
            del self.running[retired.request_id]
        return result

    def _drafts(self, rows: Sequence[EngineSequence]) -> tuple[Draft, ...]:
        if self.guess is None or not self.backend.facts.verifies:
            return ()
        guesses = [(row.request_id, tuple(self.guess(row))) for row in rows if not row.prefilling]
        return tuple(Draft(number, tokens, "long_match") for number, tokens in guesses if tokens)


class Journal:
    """A back end in use. It checks at every step what must hold for any use."""

    def __init__(self, backend: Backend, guess: Guess | None = None) -> None:
        self.backend = backend
        self.guess = guess
        self.courses: dict[int, Course] = {}
        self._rows = Rows(backend, guess)

    @property
    def live(self) -> set[int]:
        return set(self._rows.running)

    def admit(self, submit: Submit) -> Course:
        self._rows.admit(submit)
        self.courses[submit.request_id] = course = Course(submit)
        return course

    def remove(self, request_id: int) -> None:
        self._rows.remove(request_id)

    def step(self) -> StepResult:
        live = self.live
        result = self._rows.step()
        spoken = [token.request_id for token in result.tokens]
        assert self.guess or len(spoken) == len(set(spoken)), "a row had two tokens in one step"
        for prefill in result.prefills:
            course = self._of_live_row(prefill.request_id, live)
            before = course.prefilled[-1] if course.prefilled else 0
            assert prefill.total == len(course.submit.prompt)
            assert before < prefill.done <= prefill.total, "prefill progress must grow, to the prompt's end"
            assert not course.tokens, "prefill after the first token"
            course.prefilled.append(prefill.done)
        for scores in result.prompt_logprobs:
            course = self._of_live_row(scores.request_id, live)
            assert not course.tokens, "log-probabilities of the prompt after the first token"
            assert scores.start == 1 + len(course.prompt_logprobs), "twice, or not in order"
            course.prompt_logprobs += scores.entries
        for token in result.tokens:
            course = self._of_live_row(token.request_id, live)
            assert course.prefilled, "a token without prefill"
            assert course.prefilled[-1] == len(course.submit.prompt), "a token before the prompt's end"
            course.tokens.append(token.token)
            course.logprobs.append(token.logprobs)
        for retired in result.retired:
            course = self._of_live_row(retired.request_id, live)
            assert course.retired is None
            course.retired = retired
        return result

    def _of_live_row(self, request_id: int, live: set[int]) -> Course:
        assert request_id in live, "news of a request that has ended or never came"
        return self.courses[request_id]

    def step_until(self, reached: Callable[[], bool]) -> None:
        for _ in range(_PATIENCE_STEPS):
            if reached():
                return
            self.step()
        raise AssertionError("it never came to that")

    def finish(self) -> None:
        self.step_until(lambda: not self.live)
        assert kv_bytes(self.backend) == 0, "no row is left, yet key-value cache is held"


def answers(backend: Backend, submits: Iterable[Submit], guess: Guess | None = None) -> dict[int, Course]:
    """Run all of them together, to the end."""
    journal = Journal(backend, guess)
    for submit in submits:
        journal.admit(submit)
    journal.finish()
    return journal.courses


def alone(backend: Backend, submit: Submit) -> list[int]:
    """Return the tokens that this request gets with the back end to itself."""
    return answers(backend, [submit])[submit.request_id].tokens
