"""When an engine is declared hung: decisions on a clock that the test controls."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from scheduler.engines.deadlines import FLOOR_SECONDS, StepDeadlines
from scheduler.engines.stall_watch import StallWatch
from scheduler.shared.messages import (
    Alive,
    Begun,
    Counters,
    DiskCounters,
    Inspect,
    Inspection,
    MemoryState,
    PrefillOut,
    Pulse,
    StepOutput,
    StepWork,
    ToEngine,
    TokenOut,
)

CEILING = 120.0


@dataclass
class Watched:
    """A watch over these requests, and its actions. `cpu_share`: what the process uses of a core, as it
    answers each Pulse; None if it does not answer."""

    cpu_share: float | None = None
    on_board: list[int] = field(default_factory=list)
    sent: list[ToEngine] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadlines = StepDeadlines(CEILING)
        self.begin(0.0)
        self.steps = 0

    def begin(self, now: float) -> None:
        """A process is ready."""
        self.watch = StallWatch(self.deadlines, self.on_board, self.sent.append, self.killed.append, now)

    def board(self) -> None:
        self.on_board.append(len(self.on_board) + 1)

    def begin_step(self, work: StepWork, now: float) -> None:
        """The engine reports what it does now."""
        self.watch.began(Begun(work, tuple(self.on_board), 100), now)

    def step(self, now: float, *tokens: int, prefills: bool = False, reads: int = 0) -> None:
        """The engine's output arrives."""
        self.steps += 1
        told = [PrefillOut(1, 1, 9)] if prefills else []
        counters = Counters(steps=self.steps, disk=DiskCounters(reads=reads))
        self.watch.stepped(StepOutput([TokenOut(1, token) for token in tokens], told, [], counters), now)

    def answer(self, now: float, steps: int, reads: int = 0, query: int = 0) -> None:
        disk = DiskCounters(reads=reads)
        self.watch.answered(Inspection(query, 0, None, disk, steps), now)

    def learn(self) -> float:
        """Ten quick steps of decoding, a second apart."""
        self.board()
        self.begin_step("prefill", 0.0)
        self.step(1.0, prefills=True)
        self.begin_step("decode", 1.0)
        for now in range(2, 12):
            self.step(float(now), 65)
        return 11.0

    def look_on(self, start: float, end: float) -> None:
        """As `run` would, until `end` or a kill."""
        now = start
        while now < end and not self.killed:
            then = self.watch.look(now)
            assert now < then, "it would spin"
            if self.cpu_share is not None and self.sent and isinstance(self.sent[-1], Pulse):
                self.watch.pulsed(Alive(self.cpu_share * now), now)
            now = then


def test_an_engine_without_work_may_be_silent() -> None:
    """Forever, and without an inspection."""
    watched = Watched()
    watched.look_on(0.0, 10 * CEILING)
    assert (watched.killed, watched.sent) == ([], [])
    assert watched.watch.seconds(10 * CEILING) == 0


def test_an_answer_to_a_new_memory_limit_is_no_step() -> None:
    """It comes at once, beside requests whose step may still take seconds."""
    watched = Watched()
    watched.board()
    for now in range(10):
        watched.watch.stepped(StepOutput([], [], [], Counters(guard=MemoryState(limit=now))), float(now))
    assert watched.watch.limit_seconds(0.0) == CEILING
    assert watched.watch.seconds(9.0) == 9.0
    assert watched.watch.last_step_seconds(9.0) is None


def test_a_hung_step_is_found_by_the_duration_of_known_steps() -> None:
    """Ten steps of a second: thirty seconds without one are enough."""
    watched = Watched()
    last = watched.learn()
    assert watched.watch.limit_seconds(0.0) == FLOOR_SECONDS
    watched.look_on(last, last + FLOOR_SECONDS - 0.1)
    assert watched.killed == []
    watched.look_on(last + FLOOR_SECONDS - 0.1, last + FLOOR_SECONDS + 1)
    assert "(decode)" in watched.killed[0]


@pytest.mark.parametrize("work", ["reading", "prefill", "decode and prefill"])
def test_a_prompt_that_comes_is_not_judged_by_the_decoding_before_it(work: StepWork) -> None:
    """Its chunks may take longer: the ceiling again, until some of them were observed."""
    watched = Watched()
    last = watched.learn()
    watched.board()
    watched.begin_step(work, last)
    watched.look_on(last, last + CEILING - 1)
    assert watched.killed == []


def test_a_slow_step_that_computes_does_not_hang() -> None:
    """The process uses its processor: only the ceiling bounds the step. A stopped one answers no Pulse, and
    one that waits for ever uses nothing."""
    for cpu_share in (0.2, 2.0):
        working = Watched(cpu_share)
        last = working.learn()
        working.look_on(last, last + CEILING - 1)
        assert working.killed == []
        working.look_on(last + CEILING - 1, last + CEILING + 2)
        assert "no step for 120 seconds" in working.killed[0]
    for nothing in (None, 0.0):
        hung = Watched(nothing)
        last = hung.learn()
        hung.look_on(last, last + FLOOR_SECONDS + 1)
        assert "no step for 30 seconds" in hung.killed[0]


def test_a_process_that_stops_computing_hangs() -> None:
    """What it used before says nothing of now."""
    watched = Watched(1.0)
    last = watched.learn()
    watched.look_on(last, last + FLOOR_SECONDS + 1)
    assert watched.killed == []
    watched.cpu_share = None
    watched.look_on(last + FLOOR_SECONDS + 1, last + FLOOR_SECONDS + 13)
    assert watched.killed


def test_half_way_it_is_asked_and_what_it_has_done_since_counts() -> None:
    """A step or a file read since the last output counts; a reply alone does not, nor one to another
    query."""
    watched = Watched()
    watched.board()
    watched.step(1.0, prefills=True, reads=3)
    watched.look_on(1.0, 60.0)
    assert watched.sent == []
    watched.look_on(60.0, 63.0)
    assert watched.sent[:2] == [Inspect(0, top=0), Pulse()]
    watched.answer(63.0, steps=1, reads=3)
    assert watched.watch.seconds(63.0) == 62.0
    watched.answer(63.0, steps=2, reads=3, query=7)
    assert watched.watch.seconds(63.0) == 62.0
    watched.answer(64.0, steps=2, reads=3)
    assert watched.watch.seconds(64.0) == 0
    watched.answer(70.0, steps=2, reads=4)
    assert watched.watch.seconds(70.0) == 0


@pytest.mark.parametrize(("late", "killed"), [(1000.0, False), (0.5, True)])
def test_time_in_which_nobody_ran_is_not_held_against_the_engine(late: float, killed: bool) -> None:
    """A closed lid: the watch itself wakes late. A short delay excuses nothing."""
    watched = Watched()
    watched.board()
    now = CEILING - 0.5 + late
    watched.watch.overslept(late, now)
    watched.watch.look(now)
    assert bool(watched.killed) == killed
