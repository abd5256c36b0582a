"""Hooks in a server's core that write its log: around what happens to it, and at what leaves it.

The product knows nothing of it. `../saboteur` installs it in the server of a chaos run, and the replay in its
own process, so that both make lines in the same way.
"""

from __future__ import annotations

import atexit
import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio

from loadtests.chaos.core_log.lines import (
    ALL,
    Asked,
    AskedRequest,
    BeganLife,
    BeganWork,
    CarriedOut,
    Closed,
    Configured,
    Died,
    Event,
    Expired,
    Left,
    Line,
    Lost,
    Outside,
    ReadElsewhere,
    ReadPart,
    ReadSlice,
    Stepped,
    Supervision,
)
from scheduler.answer.assembly import HEAVY, Heavy
from scheduler.engines.effects import Effects
from scheduler.engines.engine import Engine
from scheduler.errors import DeadlineExceeded, InvalidRequest
from scheduler.events import AnswerPiece, Failed, FinalEvent, Finished, ToolCallStarted
from scheduler.intake.expiry import Expiry
from scheduler.intake.queue import IntakeQueue
from scheduler.requests.answer_reading import AnswerReading
from scheduler.requests.mailbox import Mailbox
from scheduler.requests.record import End, Part, StreamRecord
from scheduler.service import Scheduler
from scheduler.shared.framing import encode
from scheduler.shared.messages import Cancel, Submit, ToEngine, TurnEnded


def record(path: Path) -> None:
    """Write the log of this process's scheduler, of which there is one, until the process ends."""
    file = gzip.open(path, "wb", compresslevel=1)  # noqa: SIM115 (open until the process ends)
    atexit.register(file.close)

    def write(line: Line) -> None:
        file.write(encode(line))
        if isinstance(line.event, Lost):
            file.flush()

    Recording(write, trio.current_time).install()


class Recording:
    """`write` gets each line when its event is over."""

    def __init__(self, write: Callable[[Line], None], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._hooks = ExitStack()
        self._effects: list[str] | None = None
        """Those of the event that is under way; None between two."""
        self._reads: list[ReadPart] = []
        self._parts: Counter[int] = Counter()
        """How many parts of each answer have been read."""
        self._whose: dict[int, int] = {}
        """The request of each mailbox, by its `id`."""
        self.looks = 0
        """Looks at the clock of the reading's budget, in this event or since it began a step."""
        self._in_time = ALL

    def install(self) -> None:
        """Hook the classes of the core: before its objects are made, as they keep bound methods."""
        for owner, name, event_of in _EVENTS:
            self._hook(owner, name, self._around(event_of))
        self._hook(Scheduler, "__init__", self._configured)
        self._hook(AnswerReading, "__init__", self._timed)
        self._hook(AnswerReading, "begin_step", self._begins_step)
        self._hook(StreamRecord, "read", self._reading)
        self._hook(Mailbox, "put_final", self._before(self._final))
        self._hook(IntakeQueue, "push", self._before(self._accepted))
        self._hook(Engine, "send", self._before(_sent))
        self._hook(IntakeQueue, "charge_actual", self._before(_charged))
        self._hook(Expiry, "forget", self._before(self._over))

    def remove(self) -> None:
        """Take the hooks out again."""
        self._hooks.close()

    def _hook(self, owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        whole = getattr(owner, name)
        self._hooks.callback(setattr, owner, name, whole)
        setattr(owner, name, make(whole))

    # --- what happens

    def _around(self, event_of: Callable[..., Event]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(whole: Callable[..., Any]) -> Callable[..., Any]:
            def logged(*given: Any, **named: Any) -> Any:
                if self._effects is not None:
                    return whole(*given, **named)
                with self.event(event_of(*given, **named)):
                    return whole(*given, **named)

            return logged

        return make

    @contextmanager
    def event(self, event: Event) -> Iterator[None]:
        """Write a line of what follows from `event` within the block."""
        at, effects = self._clock(), list[str]()
        self._effects, self.looks, self._in_time = effects, 0, ALL
        try:
            yield
        except Exception as error:
            effects.append(f"raised {type(error).__name__}")
            raise
        finally:
            self._effects = None
            self._line(at, event, effects)

    def _line(self, at: float, event: Event, effects: list[str]) -> None:
        reads, self._reads = self._reads, []
        self._write(Line(at, event, tuple(effects), self._in_time, tuple(reads)))

    def _configured(self, whole: Callable[..., None]) -> Callable[..., None]:
        def init(scheduler: Scheduler, *given: Any, **named: Any) -> None:
            whole(scheduler, *given, **named)
            self._line(0.0, Configured(scheduler._config), [])

        return init

    def _timed(self, whole: Callable[..., None]) -> Callable[..., None]:
        def init(reading: AnswerReading, *given: Any, **named: Any) -> None:
            whole(reading, *given, **named)
            clock = reading._clock

            def look() -> float:
                seconds = clock()
                if seconds > reading._until and self._in_time == ALL:
                    self._in_time = self.looks
                self.looks += 1
                return seconds

            reading._clock = look

        return init

    def _begins_step(self, whole: Callable[[AnswerReading], None]) -> Callable[[AnswerReading], None]:
        def begin_step(reading: AnswerReading) -> None:
            whole(reading)
            self.looks, self._in_time = 0, ALL

        return begin_step

    def _reading(self, whole: Callable[..., Iterator[AnswerPiece | Heavy]]) -> Callable[..., Any]:
        def read(record: StreamRecord, part: Part) -> Iterator[AnswerPiece | Heavy]:
            """It may be exhausted in a worker thread."""
            self._parts[record.request_id] += 1
            number, heavy, called, failed = self._parts[record.request_id], False, [], ""
            try:
                for piece in whole(record, part):
                    heavy = heavy or piece is HEAVY
                    if isinstance(piece, ToolCallStarted):
                        called.append(piece.name)
                    yield piece
            except Exception as error:
                failed = "invalid" if isinstance(error, InvalidRequest) else "error"
                raise
            finally:
                stopped, reason = record.pipeline.stopped, None
                if isinstance(part, End) and (ending := record.pipeline.finish_reason(part.reason)):
                    reason = None if ending is part.reason else ending
                shown = (heavy, tuple(called), stopped, reason, failed)
                if any(shown):
                    self._reads.append(ReadPart(record.request_id, number, *shown))

        return read

    # --- what follows

    def _before(self, text_of: Callable[..., str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Note the effect, and go on."""

        def make(whole: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*given: Any) -> Any:
                if (text := text_of(*given)) and self._effects is not None:
                    self._effects.append(text)
                elif text:
                    self._line(self._clock(), Outside(), [text])
                return whole(*given)

            return noted

        return make

    def _final(self, mailbox: Mailbox, event: FinalEvent) -> str:
        match event:
            case Finished(reason=reason):
                how = reason.value
            case Failed(error=InvalidRequest()):
                how = "invalid"
            case Failed(error=DeadlineExceeded()):
                how = "deadline"
            case _:
                how = "error"
        return f"{self._whose[id(mailbox)]}: final event, {how}"

    def _accepted(self, queue: IntakeQueue, record: StreamRecord, now: float) -> str:
        self._whose[id(record.mailbox)] = record.request_id
        return ""

    def _over(self, expiry: Expiry, record: StreamRecord) -> str:
        self._whose.pop(id(record.mailbox), None)
        self._parts.pop(record.request_id, None)
        return f"{record.request_id}: over, {record.outcome}, {record.output_tokens} tokens"


def _sent(engine: Engine, message: ToEngine) -> str:
    match message:
        case _ if engine.life is None:
            return ""
        case Submit(request_id=request, done_tokens=done):
            return f"{request}: Submit to engine {engine.name}, behind {done} tokens"
        case Cancel(request_id=request):
            return f"{request}: Cancel to engine {engine.name}"
        case TurnEnded(session=session, kind=kind):
            return f"session {session}: waits for {kind}, engine {engine.name}"
        case _:
            return ""


def _charged(queue: IntakeQueue, record: StreamRecord, now: float) -> str:
    return f"{record.request_id}: charged, {record.uncached_tokens} and {record.output_tokens} tokens"


def _asked(scheduler: Scheduler, records: list[StreamRecord]) -> Asked:
    return Asked(
        tuple(
            AskedRequest(
                one.submit,
                one.arrived_at,
                one.request.tenant,
                one.request.session,
                one.request.priority,
                one.request.timeout_seconds,
                one.request.only_prompt,
                one.prepared.prefix_blocks,
                one.prepared.repetition,
            )
            for one in records
        )
    )


def _supervision(engine: Engine) -> Supervision:
    known = engine.supervisor
    return Supervision(known.state, known.failed_starts, known.death_cause)


_EVENTS: tuple[tuple[type, str, Callable[..., Event]], ...] = (
    (Scheduler, "_enqueue", _asked),
    (Scheduler, "_release", lambda scheduler, record: Left(record.request_id)),
    (Scheduler, "end_all", lambda scheduler: Closed()),
    (Effects, "expire", lambda effects, record, error: Expired(record.request_id)),
    (Effects, "carry_out", lambda effects, engine=None: CarriedOut(effects._dispatcher.held)),
    (Engine, "begin_life", lambda one, ready, send: BeganLife(one.name, _supervision(one), ready)),
    (Engine, "began", lambda one, begun: BeganWork(one.name, begun)),
    (Engine, "step", lambda one, output: Stepped(one.name, output)),
    (Engine, "lost", lambda one, cause: Lost(one.name, _supervision(one), cause)),
    (Engine, "died", lambda one, death: Died(one.name, _supervision(one), death)),
    (AnswerReading, "read_slice", lambda reading: ReadSlice()),
    (
        AnswerReading,
        "read_elsewhere",
        lambda reading, record, pieces, error: ReadElsewhere(record.request_id),
    ),
)
