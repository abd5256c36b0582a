"""What an engine keeps of SetMemoryLimit, whatever its back end; run by the tests of both.

Each check takes a function that makes an empty back end with a limit that leaves KV this many tokens, and
whose device has nothing but KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from scheduler.engine.backend import Backend
from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import Counters, Retired, SetMemoryLimit, StepOutput, Submit, ToEngine
from scheduler.shared.token_ids import KEY_BYTES
from tests.contracts.journal import prompt_of, request

CHUNK = 64
MAX_ROWS = 8
MOST_TOKENS = 20_000
"""What the parent may give at most."""
MACHINE_TOKENS = 30_000
"""What the machine has: what is left of it bounds the scores of attention, too."""
_TURN_SECONDS = 0.25

MakeLimited: TypeAlias = Callable[[int], Backend]


def limit_of(token_bytes: int, kv_tokens: int) -> MemoryLimit:
    """A limit that leaves KV this many tokens before any chunk was measured."""
    none = MemoryLimit(0, process_bytes=0, least_kv_bytes=token_bytes)
    most_bytes = none.least_bytes(MOST_TOKENS * (token_bytes + KEY_BYTES))
    limit_bytes = none.least_bytes(kv_tokens * (token_bytes + KEY_BYTES))
    return MemoryLimit(
        limit_bytes, most_bytes=most_bytes, process_bytes=0, least_kv_bytes=token_bytes
    ).resized(limit_bytes)


@dataclass(slots=True)
class Engine:
    """A loop and all that is heard of it."""

    backend: Backend
    now: float = 0.0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    retired: dict[int, Retired] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    limits: list[int] = field(default_factory=list)
    """As reported."""
    loop: EngineLoop = field(init=False)

    def __post_init__(self) -> None:
        self.loop = EngineLoop(self.backend, MAX_ROWS, PrefillPace(CHUNK), clock=lambda: self.now)

    def iterate(self, *commands: ToEngine) -> int:
        """Return how many frames came of it."""
        self.now += _TURN_SECONDS
        frames = self.loop.iterate(commands)
        for frame in frames:
            assert isinstance(frame, StepOutput)
            for out in frame.tokens:
                self.tokens.setdefault(out.request_id, []).append(out.token)
            self.retired |= {one.request_id: one for one in frame.retired}
            self.counters = frame.counters
            self.limits.append(frame.counters.guard.limit)
        return len(frames)

    def finish(self) -> None:
        for _ in range(5000):
            if self.loop.idle:
                return
            self.iterate()
        raise AssertionError("no progress")

    def answer(self, submits: Iterable[Submit]) -> dict[int, list[int]]:
        self.iterate(*submits)
        self.finish()
        return self.tokens

    def limit(self, kv_tokens: int) -> SetMemoryLimit:
        """The message that leaves KV this many tokens."""
        wanted = limit_of(self.backend.facts.row_bytes.token_bytes, kv_tokens)
        return SetMemoryLimit(wanted.limit_bytes, 2, wanted.most_bytes)


def _submits(count: int, answer: int, prompt: int = 100) -> list[Submit]:
    return [request(number, prompt_of(prompt, number), answer) for number in range(count)]


def check_an_idle_engine_gives_back_at_once(make: MakeLimited) -> None:
    """In the turn that gets the message, what does not fit of the prefix cache is evicted; one frame says
    what holds and what is used. Answers stay as they were."""
    engine = Engine(make(6000))
    expected = dict(engine.answer(_submits(8, 6)))
    held_bytes = engine.counters.cache.kept_bytes
    message = engine.limit(300)
    assert engine.iterate(message) == 1
    guard = engine.counters.guard
    assert guard.used <= guard.limit == message.limit_bytes
    assert 0 < engine.counters.cache.kept_bytes <= held_bytes // 2
    engine.tokens = {}
    assert engine.answer(_submits(8, 6)) == expected


def check_what_fits_is_kept(make: MakeLimited) -> None:
    """A lower limit that has room for all of the prefix cache evicts nothing."""
    engine = Engine(make(6000))
    engine.answer(_submits(4, 6))
    held_bytes = engine.counters.cache.kept_bytes
    assert engine.iterate(engine.limit(3000)) == 1
    assert engine.counters.cache.kept_bytes == held_bytes


def check_running_rows_stay(make: MakeLimited) -> None:
    """A limit below what rows need preempts none and changes no token: it is reached as they end, and never
    rises on the way."""
    submits = [request(n, prompt_of(70 + 10 * n, n), 10 * (n + 1)) for n in range(5)]
    expected = Engine(make(6000)).answer(submits)
    engine = Engine(make(6000))
    engine.iterate(*submits)
    while engine.counters.running < len(submits):
        engine.iterate()
    message = engine.limit(100)
    engine.iterate(message)
    assert engine.counters.running == len(submits)
    assert engine.counters.guard.limit > message.limit_bytes
    engine.limits = []
    engine.finish()
    assert engine.tokens == expected
    assert engine.counters.preemptions == 0
    assert engine.limits == sorted(engine.limits, reverse=True)
    assert len(set(engine.limits)) > 2
    assert engine.limits[-1] == message.limit_bytes


def check_a_lowered_limit_admits_fewer(make: MakeLimited) -> None:
    """Who comes then waits for room, and is answered."""
    engine = Engine(make(6000))
    engine.iterate(engine.limit(300))
    engine.iterate(*_submits(6, 10))
    engine.iterate()
    assert 0 < engine.counters.running < 6
    engine.finish()
    assert {one.reason for one in engine.retired.values()} == {"length"}
    assert len(engine.retired) == 6


def check_a_raised_limit_is_used_at_once(make: MakeLimited) -> None:
    """All who waited for memory run in the turn that gets it."""
    engine = Engine(make(300))
    expected = Engine(make(6000)).answer(_submits(6, 16))
    engine.iterate(*_submits(6, 16))
    engine.iterate()
    assert engine.counters.running < 6
    engine.iterate(engine.limit(6000))
    assert engine.counters.running == 6
    engine.finish()
    assert engine.tokens == expected


def check_a_prompt_within_the_most_is_not_refused(make: MakeLimited) -> None:
    """It runs alone, asks for the limit that it needs, and is answered; beyond the most it is refused."""
    engine = Engine(make(500))
    long, longer = request(1, prompt_of(1200, 1), 5), request(2, prompt_of(2 * MOST_TOKENS, 2), 5)
    engine.iterate(long, longer)
    assert engine.retired[2].reason == "refused"
    engine.iterate()
    assert engine.counters.guard.least > engine.limit(800).limit_bytes
    engine.finish()
    assert engine.retired[1].reason == "length"


def check_idle_engines_say_what_is_free(make: MakeLimited) -> None:
    """The last frame before an engine rests has the reading without its rows."""
    engine = Engine(make(6000))
    engine.answer(_submits(5, 20))
    assert engine.counters.running == 0
    assert engine.counters.guard.least == engine.counters.guard.floor
    assert engine.counters.guard.used == engine.backend.device.memory().active


MEMORY_LIMIT_CHECKS: tuple[Callable[[MakeLimited], None], ...] = (
    check_an_idle_engine_gives_back_at_once,
    check_what_fits_is_kept,
    check_running_rows_stay,
    check_a_lowered_limit_admits_fewer,
    check_a_raised_limit_is_used_at_once,
    check_a_prompt_within_the_most_is_not_refused,
    check_idle_engines_say_what_is_free,
)
