"""A run of the engine loop over one rank or several, in a process of its own: MLX joins one group in the life
of a process.

`played` starts it; `python -m` this, it prints what it saw as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from llguidance import LLMatcher

from scheduler.engine import memory
from scheduler.engine.backend import Backend
from scheduler.engine.backend_choice import make_backend
from scheduler.engine.budget.changes import BudgetChange
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import StepPlan
from scheduler.engine.ranks.all_ranks import COMPARED_STEPS, AllRanks
from scheduler.engine.ranks.group import lead
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.shared.messages import (
    Cancel,
    Inspect,
    Inspection,
    RankGroup,
    Retired,
    Sampling,
    StepOutput,
    Submit,
    ToEngine,
)
from scheduler.shared.token_ids import compact
from tests.contracts.journal import GREEDY, prompt_of, request
from tests.scheduler.engine.mlx.loads import load_of

SLOTS = 8
_SECONDS = 120.0
_SEEDED = Sampling(temperature=0.9, top_p=0.95, seed=40)
_PENALISED = Sampling(
    temperature=0.8, seed=41, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3
)
_CUT = Sampling(temperature=0.8, seed=43, min_p=0.01, top_k=40)
_KINDS = (GREEDY, _SEEDED, _PENALISED, _CUT)
_LETTERS = LLMatcher.grammar_from_regex(r'\{"name": "[a-z]{3,6}"\}')


@dataclass
class Seen:
    """What requests got, by their ids, and what the run did. `agreed`: how many comparisons of the states of
    all ranks had the same result."""

    tokens: dict[str, list[int]]
    retired: dict[str, str]
    logprobs: int
    preemptions: int
    evicted_tokens: int
    hit_tokens: int
    freed_bytes: int
    token_bytes: int
    agreed: int
    step_seconds: float


def submits(count: int, most: int, end: int) -> list[Submit]:
    """Return requests of all kinds: greedy, seeded, penalised, cut off; some with log-probabilities, some
    in a grammar; every third one behind a common prefix. `end` is the token that ends a text in a
    grammar."""
    found = []
    for number in range(count):
        prompt = prompt_of(20 + 7 * (number % 9), number)
        if number % 3 == 0:
            prompt = prompt_of(120, 1) + prompt
        one = request(number, prompt, most + number % 5, sampling=_KINDS[number % 4])
        if number % 5 == 1:
            one = msgspec.structs.replace(one, top_logprobs=2)
        if number % 7 == 2:
            one = msgspec.structs.replace(one, grammar=_LETTERS, stop_token_ids=(end,))
        if number % 6 == 5:
            one = msgspec.structs.replace(one, session=f"agent {number}", prompt_logprobs=0)
        found.append(one)
    return found


class _Run:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._loop = EngineLoop(backend, SLOTS, PrefillPace(64))
        self._tokens: dict[str, list[int]] = {}
        self._retired: dict[str, str] = {}
        self._logprobs = self._preemptions = self._freed = 0
        self._seconds: list[float] = []

    def iterate(self, *commands: ToEngine) -> None:
        started = time.perf_counter()
        for frame in self._loop.iterate(commands):
            match frame:
                case StepOutput():
                    self._note(frame)
                case Inspection(freed_bytes=freed):
                    self._freed += freed
        self._seconds.append(time.perf_counter() - started)

    def _note(self, frame: StepOutput) -> None:
        self._preemptions = frame.counters.preemptions
        for out in frame.tokens:
            self._tokens.setdefault(str(out.request_id), []).append(out.token)
            self._logprobs += out.logprobs is not None
        for retired in frame.retired:
            assert isinstance(retired, Retired)
            self._retired[str(retired.request_id)] = retired.reason

    def play(self, first: list[Submit], second: list[Submit]) -> None:
        """A burst, two cancels of rows and one of a waiting request; then a second burst whose prompts are
        partly cached."""
        self.iterate(*first)
        for _ in range(6):
            self.iterate()
        self.iterate(Cancel(first[1].request_id), Cancel(first[4].request_id), Cancel(first[-1].request_id))
        self.finish()
        self.iterate(*second)
        self.finish()

    def finish(self) -> None:
        while not self._loop.idle:
            self.iterate()

    def seen(self, agreed: int) -> Seen:
        assert self._backend.cache is not None
        cached = self._backend.cache.prefixes.statistics()
        return Seen(
            self._tokens,
            self._retired,
            self._logprobs,
            self._preemptions,
            sum(cached.evicted_tokens.values()),
            cached.hit_tokens,
            self._freed,
            self._backend.facts.row_bytes.token_bytes,
            agreed,
            sorted(self._seconds)[len(self._seconds) // 2],
        )


def _compare(ranks: AllRanks) -> None:
    """Wait for the others' states: raises where one is another."""
    ranks._comparisons += 1
    ranks.execute(StepPlan(compare=ranks._comparisons))
    deadline = time.monotonic() + _SECONDS
    while ranks._missing:
        ranks.execute(StepPlan())
        assert time.monotonic() < deadline, "a rank does not answer"
        time.sleep(0.001)


def run(folder: Path, ranks: int, roomy: int, tight: int, count: int, most: int) -> Seen:
    """Twice the same with a cleared cache between, in a roomy and in a tight KV budget: in tokens, of which
    all numbers of ranks hold as many."""
    tokenizer = HubTokenizer(folder).for_grammars()
    load = load_of(folder, max_slots=SLOTS, kv_cache_bytes=1 << 30, tokenizer=tokenizer)
    if ranks == 1:
        backend = make_backend(load, _silent)
    else:
        backend = lead(msgspec.structs.replace(load, ranks=RankGroup(ranks, "ring", ())), _silent, _lost)
        # Twice as often as usual: a busy machine takes fewer steps.
        backend._compared_steps = COMPARED_STEPS // 2
    end = int(json.loads((folder / "config.json").read_text())["eos_token_id"])
    played = _Run(backend)
    for tokens, first_id in ((roomy, 0), (tight, 2000)):
        kv_bytes = tokens * (backend.facts.row_bytes.token_bytes + 4)
        backend.execute(StepPlan(budget=BudgetChange(kv_bytes=kv_bytes)))
        first = [_moved(one, first_id) for one in submits(count, most, end)]
        played.play(first, [_moved(one, 1000) for one in first[: count // 2]])
        if isinstance(backend, AllRanks):
            _compare(backend)
        played.iterate(Inspect(1, clear=True))
    if not isinstance(backend, AllRanks):
        return played.seen(0)
    _compare(backend)
    return played.seen(backend._comparisons)


def _moved(submit: Submit, by: int) -> Submit:
    moved: Submit = msgspec.structs.replace(
        submit, request_id=submit.request_id + by, prompt=compact([*submit.prompt, 3])
    )
    return moved


def _silent(stage: str) -> None:
    """Nobody watches."""


def _lost(reason: str) -> NoReturn:
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)


def played(folder: Path, ranks: int, *numbers: int) -> Seen:
    """`run` in a process of its own. Raises AssertionError with its stderr where it fails."""
    arguments = [str(folder), *map(str, (ranks, *numbers))]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * _SECONDS,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Seen(**found)


def main() -> None:
    folder, *numbers = sys.argv[1:]
    memory.GROWTH_TOKENS = 1  # Nothing is reserved for answers, so that rows are preempted.
    print(json.dumps(asdict(run(Path(folder), *map(int, numbers)))), flush=True)
    # MLX's ring threads would wait for the other ranks at the end of the process; they end with this one.
    os._exit(0)


if __name__ == "__main__":
    main()
