"""What a step's tokens cost the event loop at once is bounded, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.text_stream import HEAVY, Heavy
from scheduler.errors import DeadlineExceeded
from scheduler.events import AnswerPiece, Failed, Finished, FinishReason, StreamEvent
from scheduler.offload import Lane
from scheduler.requests.answer_reading import STEP_SECONDS, AnswerReading
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.shared.messages import LogprobsOut
from tests.examples import examples
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.scheduler.requests.board import Board, step
from tests.scheduler.requests.records import events_of, finals_of, make_record, text_of

_T = TypeVar("_T")
HEAVY_TOKEN = ord("#")


@dataclass
class Desk(Board):
    """A board whose turns are taken. `cpu` is the loop's CPU time, of which a token takes `cost`; what a
    worker reads waits for `gate`."""

    cpu: float = 0.0
    cost: float = 0.0
    gate: trio.Event = field(default_factory=trio.Event)
    read: list[int] = field(default_factory=list)
    """The ids of the requests whose tokens were read, in order."""
    in_worker: list[str] = field(default_factory=list)
    """Whose, when a worker was asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reading = AnswerReading(self._offload, self.requests, self.reconcile, lambda: self.cpu)
        self.multiplexer._reading = self.reading

    async def _offload(self, work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
        assert lane is Lane.ANSWER
        self.in_worker.append(tenant)
        await self.gate.wait()
        return work()

    def take(
        self, request_id: int, tenant: str = "", stop: tuple[str, ...] = (), max_tokens: int = 100
    ) -> StreamRecord:
        record = make_record(request_id, tenant=tenant, stop=stop, max_tokens=max_tokens)
        record.pipeline = _Costly(self, request_id, stop)
        return self.submit(record)


class _Costly(AnswerPipeline):
    def __init__(self, desk: Desk, request_id: int, stop: Sequence[str]) -> None:
        super().__init__(ByteTokenizer().detokenizer(), stop)
        self._desk = desk
        self._id = request_id

    def read(self, token_id: int, logprobs: LogprobsOut | None = None) -> Iterator[AnswerPiece | Heavy]:
        self._desk.cpu += self._desk.cost
        self._desk.read.append(self._id)
        if token_id == HEAVY_TOKEN:
            yield HEAVY
        yield from super().read(token_id, logprobs)


async def all_read() -> None:
    await trio.testing.wait_all_tasks_blocked()


@trio_test
async def test_what_exceeds_a_steps_budget_is_read_later_in_turns_by_tenant(
    autojump_clock: MockClock,
) -> None:
    """One client's 32 choices cost another one a turn of the loop, and not their own time."""
    desk = Desk(cost=STEP_SECONDS * 0.4)
    hostile = [desk.take(number, "hostile") for number in range(1, 9)]
    neighbour = desk.take(9, "neighbour")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.reading.run)
        await all_read()
        desk.route(step(tokens=[(number, ord("a")) for number in range(1, 10)]))
        assert desk.read == [1, 2, 3]
        await all_read()
        nursery.cancel_scope.cancel()
    assert desk.read[:6] == [1, 2, 3, 4, 9, 5]
    assert all(text_of(events_of(record)) == "a" for record in (*hostile, neighbour))


@trio_test
async def test_the_loop_runs_between_two_slices(autojump_clock: MockClock) -> None:
    """However much is left, every task gets its turn after one budget."""
    desk = Desk(cost=STEP_SECONDS * 0.6)
    for number in range(1, 33):
        desk.take(number)
    seen: list[float] = []

    async def watch() -> None:
        while len(desk.read) < 32:
            seen.append(desk.cpu)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.reading.run)
        await all_read()
        desk.route(step(tokens=[(number, ord("a")) for number in range(1, 33)]))
        nursery.start_soon(watch)
        await all_read()
        nursery.cancel_scope.cancel()
    # Two slices may come between two turns of a task: trio shuffles what can run.
    assert max(after - before for before, after in pairwise(seen)) <= 3 * STEP_SECONDS


@trio_test
async def test_what_a_worker_reads_holds_up_its_own_row_alone(autojump_clock: MockClock) -> None:
    """Its later tokens and its end wait behind it; its engine's slot does not."""
    desk = Desk()
    heavy, other = desk.take(1, "a"), desk.take(2, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.reading.run)
        await all_read()
        desk.route(step(tokens=[(1, HEAVY_TOKEN), (2, ord("x"))]))
        desk.route(step(tokens=[(1, ord("b")), (2, ord("y"))], retired=[(1, "length")]))
        await all_read()
        assert desk.in_worker == ["a"]
        assert (text_of(events_of(other)), events_of(heavy)) == ("xy", [])
        assert (len(desk.on_board), desk.ending) == (1, [heavy])
        assert (heavy.state, desk.left) == (State.ENDING, [])
        desk.gate.set()
        await all_read()
        nursery.cancel_scope.cancel()
    events = events_of(heavy)
    assert text_of(events) == "#b"
    assert [final.reason for final in finals_of(events) if isinstance(final, Finished)] == [
        FinishReason.LENGTH
    ]
    assert (heavy.state, desk.left, desk.ending) == (State.RETIRED, [heavy], [])


@trio_test
async def test_what_comes_behind_a_stop_string_in_a_worker_is_not_counted(autojump_clock: MockClock) -> None:
    """As it is not where everything is read at once: the engine went on while nobody knew."""
    desk = Desk()
    record = desk.take(1, stop=("#",))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.reading.run)
        await all_read()
        for token in (ord("a"), HEAVY_TOKEN, ord("b"), ord("c")):
            desk.route(step(tokens=[(1, token)]))
        desk.gate.set()
        await all_read()
        nursery.cancel_scope.cancel()
    events = events_of(record)
    assert text_of(events) == "a"
    [final] = finals_of(events)
    assert isinstance(final, Finished)
    assert (final.reason, final.stop_string, final.usage.output_tokens) == (FinishReason.STOP, "#", 2)
    assert record.state is State.CANCELLING


ENDS = ("the reader leaves", "its deadline passes", "its engine dies", "everything ends")


@pytest.mark.parametrize("ended", [False, True], ids=["in a slot", "ended by its engine"])
@pytest.mark.parametrize("end", ENDS)
@trio_test
async def test_a_request_may_end_while_a_worker_reads(
    end: str, ended: bool, autojump_clock: MockClock
) -> None:
    """What the worker finds comes too late, or, if only the engine is gone, in its place."""
    desk = Desk()
    record = desk.take(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.reading.run)
        await all_read()
        retired = [(1, "length")] if ended else []
        desk.route(step(tokens=[(1, HEAVY_TOKEN)], retired=retired))  # type: ignore[arg-type]
        await all_read()
        assert record.state is (State.ENDING if ended else State.DECODING)
        match end:
            case "the reader leaves":
                record.abandon()
                desk.cancel(record)
            case "its deadline passes":
                record.fail(DeadlineExceeded("too late"))
                desk.cancel(record)
            case "its engine dies":
                desk.lose_all()
            case _:
                nursery.cancel_scope.cancel()
        desk.gate.set()
        with trio.CancelScope(shield=True):
            await all_read()
        nursery.cancel_scope.cancel()
    match end, ended:
        case ("its engine dies", False):
            assert (record.state, text_of(events_of(record))) == (State.AWAITING_ENGINE, "#")
            desk.multiplexer.take(record)
            desk.route(step(tokens=[(1, ord("b"))], retired=[(1, "length")]))
            assert text_of(events_of(record)) == "b"
        case ("its engine dies", True):
            assert [type(event).__name__ for event in events_of(record)] == ["TextDelta", "Finished"]
        case ("everything ends", _):
            assert len(desk.ending) == ended
            return
        case ("its deadline passes", _):
            assert [type(event) for event in events_of(record)] == [Failed]
        case _:
            assert events_of(record) == []
    if desk.on_board:
        desk.route(step(retired=[(1, "cancelled")]))
    assert (record.state, desk.left, desk.ending) == (State.RETIRED, [record], [])


_rows = st.lists(st.sampled_from("ab#E"), min_size=1, max_size=8).map("".join)


@settings(max_examples=examples(150), deadline=None)
@given(texts=st.lists(_rows, min_size=1, max_size=4), cost=st.sampled_from([0.0, 0.3, 0.9, 2.0]))
def test_an_answer_does_not_depend_on_when_it_was_read(texts: list[str], cost: float) -> None:
    """The same text, end and usage as where everything is read at once, whatever else the step has to do."""

    def steps(board: Board) -> Iterator[None]:
        for place in range(max(map(len, texts))):
            on = [number for number, text in enumerate(texts, 1) if place < len(text)]
            held = [(number, ord(texts[number - 1][place])) for number in on]
            ended = [number for number in on if place == len(texts[number - 1]) - 1]
            board.route(step(tokens=held, retired=[(number, "length") for number in ended]))
            yield

    def outcome(record: StreamRecord) -> tuple[str, list[StreamEvent]]:
        events = events_of(record)
        return text_of(events), list(finals_of(events))

    at_once = Desk()
    plain = [at_once.take(number, stop=("bE",)) for number in range(1, len(texts) + 1)]
    for _ in steps(at_once):
        pass
    desk = Desk(cost=STEP_SECONDS * cost)
    later = [desk.take(number, f"t{number % 2}", stop=("bE",)) for number in range(1, len(texts) + 1)]

    async def in_turns() -> None:
        desk.gate.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.reading.run)
            await all_read()
            for _ in steps(desk):
                await trio.lowlevel.checkpoint()
            await all_read()
            nursery.cancel_scope.cancel()

    trio.run(in_turns)
    assert [outcome(record) for record in later] == [outcome(record) for record in plain]
    assert all(record.state is State.RETIRED for record in later)
