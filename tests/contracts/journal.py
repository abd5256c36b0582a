"""A back end in use: requests, what was heard of each, and what must hold at every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.sequence import Sequence
from scheduler.link.messages import LogprobsOut, Retired, Sampling, Submit

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
    """A prompt without meaning; equal arguments give equal prompts."""
    generator = random.Random(seed * 1_000_003 + tokens)
    return [generator.randrange(VOCABULARY) for _ in range(tokens)]


def request(
    request_id: int,
    prompt: list[int],
    max_tokens: int = 6,
    stop: tuple[int, ...] = (),
    sampling: Sampling = GREEDY,
) -> Submit:
    return Submit(request_id, prompt, max_tokens, stop, sampling)


@dataclass(slots=True)
class Course:
    """What has been heard of one request."""

    submit: Submit
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobsOut | None] = field(default_factory=list)
    prefilled: list[int] = field(default_factory=list)
    retired: Retired | None = None


class Journal:
    """A back end in use. Whatever its user does, it checks what must hold at every step."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.courses: dict[int, Course] = {}
        self.live: set[int] = set()

    def admit(self, submit: Submit) -> Course:
        self.backend.admit(Sequence.of(submit))
        self.live.add(submit.request_id)
        self.courses[submit.request_id] = course = Course(submit)
        return course

    def remove(self, request_id: int) -> None:
        self.backend.remove(request_id)
        self.live.remove(request_id)

    def step(self) -> StepResult:
        result = self.backend.step()
        spoken = [token.request_id for token in result.tokens]
        assert len(spoken) == len(set(spoken)), "a row had two tokens in one step"
        for prefill in result.prefills:
            course = self._of_live_row(prefill.request_id)
            before = course.prefilled[-1] if course.prefilled else 0
            assert prefill.total == len(course.submit.prompt)
            assert before < prefill.done <= prefill.total, "prefill progress must grow, to the prompt's end"
            assert not course.tokens, "prefill after the first token"
            course.prefilled.append(prefill.done)
        for token in result.tokens:
            course = self._of_live_row(token.request_id)
            assert course.prefilled, "a token without prefill"
            assert course.prefilled[-1] == len(course.submit.prompt), "a token before the prompt's end"
            course.tokens.append(token.token)
            course.logprobs.append(token.logprobs)
        for retired in result.retired:
            self._of_live_row(retired.request_id).retired = retired
            self.live.remove(retired.request_id)
        return result

    def _of_live_row(self, request_id: int) -> Course:
        assert request_id in self.live, "news of a request that has ended or never came"
        return self.courses[request_id]

    def step_until(self, reached: Callable[[], bool]) -> None:
        for _ in range(_PATIENCE_STEPS):
            if reached():
                return
            self.step()
        raise AssertionError("it never came to that")

    def finish(self) -> None:
        self.step_until(lambda: not self.live)
        assert self.backend.kv_bytes() == 0, "no row is left, yet key-value cache is held"


def answers(backend: Backend, submits: Iterable[Submit]) -> dict[int, Course]:
    """All of them at once, to the end."""
    journal = Journal(backend)
    for submit in submits:
        journal.admit(submit)
    journal.finish()
    return journal.courses


def alone(backend: Backend, submit: Submit) -> list[int]:
    """The tokens this request gets when it has the back end to itself."""
    return answers(backend, [submit])[submit.request_id].tokens
