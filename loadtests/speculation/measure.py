"""Rows with and without speculation, in turn, in one process: `python -m loadtests.speculation`.

Each turn is a closed loop: a row that ends is asked again, so that the number of rows that decode is always
the one asked for, and their prompts are in the prefix cache. One `Speculation` is used throughout, as in an
engine that runs on: what it has learnt from one workload it brings to the next. Tokens with and without are
compared; in float32 a tie may fall the other way, because a wider product is summed in another order.

With the clock "processor" the engine learns costs in processor time: on a busy machine the other clock
measures the neighbours, and one step that waited for them turns drafts off for hundreds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from loadtests.speculation.workloads import Task, least_ratio, tasks
from scheduler.config import EngineConfig, load_message
from scheduler.engine.backend import Backend
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx import loading as model_loading
from scheduler.engine.pace import PrefillPace
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest, Reasoning
from scheduler.shared.messages import Cancel, Counters, StepOutput, Submit
from scheduler.shared.token_ids import compact

Clock = Literal["wall", "processor"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
_KV_BYTES = 6 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a workload. `answers`: by row and by how often it was asked before."""

    tokens: int
    wall_seconds: float
    processor_seconds: float
    steps: int
    saved_seconds: float
    sources: dict[str, tuple[int, int]]
    answers: dict[tuple[int, int], list[int]]


@dataclass(frozen=True, slots=True)
class Pair:
    plain: Turn
    drafted: Turn

    @property
    def wall_ratio(self) -> float:
        return self._rate_ratio(self.plain.wall_seconds, self.drafted.wall_seconds)

    @property
    def processor_ratio(self) -> float:
        return self._rate_ratio(self.plain.processor_seconds, self.drafted.processor_seconds)

    def _rate_ratio(self, plain_seconds: float, drafted_seconds: float) -> float:
        return (self.drafted.tokens / drafted_seconds) / (self.plain.tokens / plain_seconds)

    @property
    def equal(self) -> tuple[int, int]:
        """Return how many answers are equal, as far as both go, and how many there are."""
        both = self.plain.answers.keys() & self.drafted.answers.keys()
        equal = 0
        for key in both:
            one, other = self.plain.answers[key], self.drafted.answers[key]
            least = min(len(one), len(other))
            equal += one[:least] == other[:least]
        return equal, len(both)


@dataclass(slots=True)
class _Run:
    """A loop whose rows are asked again when they end."""

    loop: EngineLoop
    submit: Callable[[int, int], Submit]
    """Makes the request of a row, by the row and by how often it was asked before."""
    answers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    tokens: int = 0
    counters: Counters = field(default_factory=Counters)
    _asked: dict[int, tuple[int, int]] = field(default_factory=dict)

    def ask(self, row: int, times: int) -> Submit:
        submit = self.submit(row, times)
        self._asked[submit.request_id] = row, times
        self.answers[row, times] = []
        return submit

    def iterate(self, commands: Sequence[Submit | Cancel] = ()) -> list[Submit]:
        """Run one turn of the loop. Return the requests that follow the rows that have ended."""
        again: list[Submit] = []
        for frame in self.loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            self.counters = frame.counters
            self.tokens += len(frame.tokens)
            for token in frame.tokens:
                self.answers[self._asked[token.request_id]].append(token.token)
            for retired in frame.retired:
                row, times = self._asked.pop(retired.request_id)
                assert retired.reason in ("length", "cancelled"), retired
                if retired.reason == "length":
                    again.append(self.ask(row, times + 1))
        return again

    def leave(self) -> None:
        self.iterate([Cancel(number) for number in self._asked])
        while not self.loop.idle:
            self.iterate()


class Bench:
    """One model, and what its rows have been asked."""

    def __init__(self, folder: Path, tokens: int, clock: Clock) -> None:
        """`tokens`: how many each answer has. `clock`: by which the engine learns costs."""
        self._clock = CLOCKS[clock]
        # The dialect that most coding models write.
        tokenizer = HubTokenizer(folder, tool_parser="qwen3_coder")
        self._preparation = Preparation(tokenizer, inspect(folder))
        load = load_message(
            EngineConfig(
                "mlx",
                str(folder),
                max_slots=64,
                weights_dtype="float32",
                kv_cache_bytes=_KV_BYTES,
                tokenizer=tokenizer.for_grammars(),
            )
        )
        self._backend: Backend = model_loading.load(load, lambda stage: None)
        assert self._backend.facts.verifies, "this model's state cannot be rolled back"
        self._tokens = tokens
        self._numbers = count(1)
        self.speculation = Speculation()

    def pairs(self, workload: str, rows: int, turns: int) -> Iterator[Pair]:
        asked = [self._submit(task) for task in tasks(workload, rows)]
        self._turn(asked, 1, None)  # The prompts are cached from here on.
        for _ in range(turns):
            plain = self._turn(asked, self._tokens, None)
            yield Pair(plain, self._turn(asked, self._tokens, self.speculation))

    def _turn(self, asked: Sequence[Submit], tokens: int, speculation: Speculation | None) -> Turn:
        def submit(row: int, times: int) -> Submit:
            known = asked[row]
            seeded = msgspec.structs.replace(known.sampling, seed=known.sampling.seed + 1000 * times)
            again: Submit = msgspec.structs.replace(
                known, request_id=next(self._numbers), max_tokens=tokens, sampling=seeded
            )
            return again

        loop = EngineLoop(self._backend, 64, PrefillPace(512), clock=self._clock, speculation=speculation)
        run = _Run(loop, submit)
        coming = run.iterate([run.ask(row, 0) for row in range(len(asked))])
        while not all(run.answers[row, 0] for row in range(len(asked))):
            coming = run.iterate(coming)
        before, counters = run.tokens, run.counters
        started, worked = time.perf_counter(), time.process_time()
        while run.tokens - before < len(asked) * tokens:
            coming = run.iterate(coming)
        seconds, processor = time.perf_counter() - started, time.process_time() - worked
        after = run.counters
        run.leave()
        known = counters.drafts.sources
        return Turn(
            run.tokens - before,
            seconds,
            processor,
            after.steps - counters.steps,
            after.drafts.saved_seconds - counters.drafts.saved_seconds,
            {
                source: (proposed - known.get(source, (0, 0))[0], accepted - known.get(source, (0, 0))[1])
                for source, (proposed, accepted) in after.drafts.sources.items()
            },
            run.answers,
        )

    def _submit(self, task: Task) -> Submit:
        request = GenerationRequest(
            "speculation",
            ChatPrompt(({"role": "user", "content": task.message},), reasoning=Reasoning(enabled=False)),
            sampling=task.sampling,
            max_tokens=self._tokens,
            structure=task.schema,
        )
        ready = self._preparation.prepare(request).submit
        begun = self._preparation.tokenizer.encode(task.begun) if task.begun else []
        # Nothing ends by itself but an answer with a grammar, whose list is longer than its tokens.
        return Submit(0, compact([*ready.prompt, *begun]), 1, (), task.sampling, grammar=ready.grammar)


def described(workload: str, rows: int, pairs: Sequence[Pair]) -> str:
    """Return a line: medians of ratios, each of one turn to the plain turn before it."""
    wall = statistics.median(pair.wall_ratio for pair in pairs)
    processor = statistics.median(pair.processor_ratio for pair in pairs)
    drafted = [pair.drafted for pair in pairs]
    tokens_a_step = sum(turn.tokens for turn in drafted) / sum(turn.steps for turn in drafted) / rows
    tallies: dict[str, tuple[int, int]] = {}
    for turn in drafted:
        for source, (proposed, accepted) in turn.sources.items():
            known = tallies.get(source, (0, 0))
            tallies[source] = known[0] + proposed, known[1] + accepted
    sources = ", ".join(
        f"{source} {accepted}/{proposed}" for source, (proposed, accepted) in tallies.items() if proposed
    )
    equal = [sum(each) for each in zip(*(pair.equal for pair in pairs), strict=True)]
    plain_ms = 1000 * statistics.median(pair.plain.wall_seconds / pair.plain.steps for pair in pairs)
    aim = least_ratio(workload, rows)
    return (
        f"{rows:2} rows, {workload:6}: {wall:.2f} of the tokens/s without (aim {aim}),"
        f" {processor:.2f} by processor time; {tokens_a_step:.2f} tokens a row and step;"
        f" accepted {sources or 'none'}; saved {sum(turn.saved_seconds for turn in drafted):.1f} s of"
        f" {sum(turn.wall_seconds for turn in drafted):.1f}; {equal[0]} of {equal[1]} answers equal;"
        f" a plain step {plain_ms:.1f} ms; load {os.getloadavg()[0]:.1f}"
    )
