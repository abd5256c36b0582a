"""When which request's tokens are read: reading a step's tokens on the event loop has one time budget for all
requests.

Reading is what the answer pipeline does: text, stop strings, sections, calls. A step's tokens are read at
once while the step's budget lasts, as it does in all but hostile steps. What is left is read in slices,
between which the loop runs everything else. What takes long for a single token (fitting a value to a schema,
parsing a block) is done in a worker thread. Tenants take turns in both, and a request's parts stay in order.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog
import trio

from scheduler.answer.text_stream import HEAVY, Heavy
from scheduler.errors import RequestFailed, SchedulerError
from scheduler.events import AnswerPiece, FinishReason
from scheduler.offload import Lane, Offload
from scheduler.requests.lifecycle import Event
from scheduler.requests.record import End, EndToken, Part, StreamRecord
from scheduler.requests.table import Requests

_log = structlog.get_logger("multiplexer")
STEP_SECONDS = 0.005
"""Bound on the event loop's own CPU time for one step. A token of ordinary text takes 20 to 60 us."""

Reading = Iterator[AnswerPiece | Heavy]


class AnswerReading:
    """`run` must be running, else everything is read at once. `read_on` is called after what was read
    later."""

    def __init__(
        self,
        offload: Offload,
        requests: Requests,
        read_on: Callable[[], None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._offload = offload
        self._requests = requests
        self._read_on = read_on
        self._clock = clock
        self._until = 0.0
        self._waiting: OrderedDict[str, deque[StreamRecord]] = OrderedDict()
        """Those whose next part may be read, by tenant, in the order of turns. No queue in it is empty."""
        self._change = trio.Event()
        self._nursery: trio.Nursery | None = None

    def begin_step(self) -> None:
        """Begin the time budget of a step, or of a slice."""
        self._until = self._clock() + STEP_SECONDS

    def read(self, record: StreamRecord, part: Part) -> None:
        """Read the next part of an answer, now or when it is its turn. Its end may come a second time, when
        the engine has ended what the answer's own text ended before: the first one counts."""
        if not record.unread:
            if self._nursery is None or self._clock() <= self._until:
                self._begin(record, part)
            else:
                record.unread.append(part)
                self._queue(record)
        elif record.over:
            assert isinstance(part, End), "a token behind the end"
        else:
            record.unread.append(part)

    async def run(self) -> None:
        """Never returns by itself."""
        try:
            async with trio.open_nursery() as self._nursery:
                while True:
                    while self._waiting:
                        self.read_slice()
                        await trio.lowlevel.checkpoint()
                    self._change = trio.Event()
                    await self._change.wait()
        finally:
            self._nursery = None

    def read_slice(self) -> None:
        """Read on while a step's budget lasts."""
        self.begin_step()
        while self._waiting and self._clock() <= self._until:
            self._read_next()
        self._read_on()

    def _queue(self, record: StreamRecord) -> None:
        self._waiting.setdefault(record.request.tenant, deque()).append(record)
        self._change.set()

    def _read_next(self) -> None:
        tenant, records = next(iter(self._waiting.items()))
        record = records.popleft()
        self._waiting.move_to_end(tenant)
        if not records:
            del self._waiting[tenant]
        if record.listening:
            self._begin(record, record.unread.popleft())
        else:
            record.unread.clear()

    def _begin(self, record: StreamRecord, part: Part) -> None:
        try:
            reading = record.read(part)
            for piece in reading:
                if piece is not HEAVY:
                    record.put(piece)
                elif self._nursery is not None:
                    record.unread.appendleft(part)
                    self._nursery.start_soon(self._elsewhere, record, reading)
                    return
        except Exception as error:
            self._failed(record, error)
        else:
            self._done(record, part)

    async def _elsewhere(self, record: StreamRecord, reading: Reading) -> None:
        """Read the rest of a part in a worker thread. Its request may be over when that is done."""
        work = partial(_rest, reading)
        tenant = record.request.tenant
        try:
            pieces, error = await self._offload(work, tenant=tenant, lane=Lane.ANSWER)
        except Exception as failure:  # A library's panic.
            pieces, error = [], failure
        self.read_elsewhere(record, pieces, error)

    def read_elsewhere(
        self, record: StreamRecord, pieces: Sequence[AnswerPiece], error: Exception | None
    ) -> None:
        """The rest of a part was read in a worker thread: into `pieces`, up to an `error` if there was
        one."""
        if not record.listening:
            record.unread.clear()
            return
        for piece in pieces:
            record.put(piece)
        part = record.unread.popleft()
        if error is None:
            self._done(record, part)
        else:
            self._failed(record, error)
        self._read_on()

    def _done(self, record: StreamRecord, part: Part) -> None:
        """Go on after a part that has been read."""
        if isinstance(part, End):
            record.finish(part)
            self._requests.move(record, Event.CANCEL)
        elif record.pipeline.stopped and not isinstance(part, EndToken):
            # What has come after it is no part of the answer. Behind an end token comes the engine's end.
            record.forget_unread()
            self._begin(record, End(FinishReason.STOP))
        elif record.unread:
            self._queue(record)

    def _failed(self, record: StreamRecord, error: Exception) -> None:
        record.forget_unread()
        if isinstance(error, SchedulerError):
            # An error for the client, and no bug of the server.
            record.fail(error)
        else:
            _log.error("answer_failed", request=record.request.public_id, exc_info=error)
            record.fail(RequestFailed(f"the answer could not be decoded: {error}"))
        self._requests.move(record, Event.CANCEL)


def _rest(reading: Reading) -> tuple[list[AnswerPiece], Exception | None]:
    """Read the rest in a worker thread, without the mailbox, which belongs to the event loop."""
    pieces: list[AnswerPiece] = []
    try:
        pieces.extend(piece for piece in reading if piece is not HEAVY)
    except Exception as error:
        return pieces, error
    return pieces, None
