"""What a step's tokens cost the event loop at once is bounded; nothing else changes (`service_machine/`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.text_stream import HEAVY, Heavy
from scheduler.events import AnswerPiece, Finished, FinishReason
from scheduler.offload import Lane
from scheduler.requests.answer_reading import STEP_SECONDS, AnswerReading
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.shared.messages import LogprobsOut
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

    def take(self, request_id: int, tenant: str) -> StreamRecord:
        record = make_record(request_id, tenant=tenant, max_tokens=100)
        record.pipeline = _Costly(self, request_id)
        return self.submit(record)


class _Costly(AnswerPipeline):
    def __init__(self, desk: Desk, request_id: int) -> None:
        super().__init__(ByteTokenizer().detokenizer(), ())
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
