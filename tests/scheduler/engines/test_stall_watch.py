"""When an engine is declared hung: decisions on a clock that the test controls."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from scheduler.engines.deadlines import FLOOR_SECONDS, StepDeadlines
from scheduler.engines.stall_watch import StallWatch
from scheduler.requests.lifecycle import Event
from scheduler.requests.record import StreamRecord
from scheduler.shared.messages import (
    CacheCounters,
    Counters,
    Inspect,
    Inspection,
    MemoryState,
    PrefillOut,
    StepOutput,
    ToEngine,
    TokenOut,
)
from scheduler.shared.reports import DiskReport, EngineReport
from tests.scheduler.requests.records import make_record

CEILING = 120.0


@dataclass
class Watched:
    """A watch over these records, and its actions."""

    on_board: list[StreamRecord] = field(default_factory=list)
    sent: list[ToEngine] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadlines = StepDeadlines(CEILING)
        self.begin(0.0)
        self.steps = 0

    def begin(self, now: float) -> None:
        """A process is ready."""
        self.watch = StallWatch(self.deadlines, self.on_board, self.sent.append, self.killed.append, now)

    def board(self) -> StreamRecord:
        record = make_record(len(self.on_board) + 1, max_tokens=1000)
        record.move(Event.DISPATCH)
        self.on_board.append(record)
        return record

    def step(self, now: float, *tokens: int, prefills: bool = False, reads: int = 0) -> None:
        self.steps += 1
        told = [PrefillOut(1, 1, 9)] if prefills else []
        counters = Counters(steps=self.steps, cache=CacheCounters(disk_reads=reads))
        self.watch.stepped(StepOutput([TokenOut(1, token) for token in tokens], told, [], counters), now)
        for token in tokens:
            self.on_board[0].count_token(token, now)

    def answer(self, now: float, steps: int, reads: int = 0, query: int = 0) -> None:
        disk = DiskReport(0, 0, 0, reads, 0, 0, 0, 0, 0, {}, 0)
        self.watch.answered(Inspection(query, 0, None, disk, EngineReport([], 0, None, {}, steps)), now)

    def learn(self) -> float:
        """Ten quick steps of decoding, a second apart."""
        self.board()
        self.step(1.0, prefills=True)
        for now in range(2, 12):
            self.step(float(now), 65)
        return 11.0

    def look_on(self, start: float, end: float) -> None:
        """As `run` would, until `end` or a kill."""
        now = start
        while now < end and not self.killed:
            then = self.watch.look(now)
            assert now < then, "it would spin"
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
    assert watched.watch.limit_seconds() == CEILING
    assert watched.watch.seconds(9.0) == 9.0
    assert watched.watch.last_step_seconds(9.0) is None


def test_an_unknown_step_has_the_ceiling() -> None:
    """The first steps of an engine have no earlier ones to compare with."""
    watched = Watched()
    watched.board()
    watched.look_on(0.0, CEILING - 1)
    assert watched.killed == []
    watched.look_on(CEILING - 1, CEILING + 2)
    assert "no step for 120 seconds" in watched.killed[0]


def test_a_hung_step_is_found_by_the_duration_of_known_steps() -> None:
    """Ten steps of a second: thirty seconds without one are enough."""
    watched = Watched()
    last = watched.learn()
    assert watched.watch.limit_seconds() == FLOOR_SECONDS
    watched.look_on(last, last + FLOOR_SECONDS - 0.1)
    assert watched.killed == []
    watched.look_on(last + FLOOR_SECONDS - 0.1, last + FLOOR_SECONDS + 1)
    assert "(decode)" in watched.killed[0]


def test_a_prompt_that_comes_is_not_judged_by_the_decoding_before_it() -> None:
    """Its chunks may take longer: the ceiling again, until some of them were observed."""
    watched = Watched()
    last = watched.learn()
    watched.board()
    watched.look_on(last, last + CEILING - 1)
    assert watched.killed == []


def test_after_a_death_the_next_engine_begins_with_the_ceiling() -> None:
    """Its first steps compile kernels and touch new memory."""
    watched = Watched()
    last = watched.learn()
    assert watched.watch.limit_seconds() < CEILING
    watched.begin(last + 1000)
    assert watched.watch.seconds(last + 1000) == 0
    assert watched.watch.limit_seconds() == CEILING


def test_half_way_it_is_asked_and_what_it_has_done_since_counts() -> None:
    """A step or a file read since the last output counts; a reply alone does not, nor one to another
    query."""
    watched = Watched()
    watched.board()
    watched.step(1.0, prefills=True, reads=3)
    watched.look_on(1.0, 60.0)
    assert watched.sent == []
    watched.look_on(60.0, 63.0)
    assert watched.sent[0] == Inspect(0, top=0)
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
